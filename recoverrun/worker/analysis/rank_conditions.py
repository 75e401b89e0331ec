"""Conditions by which a script asks whether this is rank 0."""

import ast
import re

from recoverrun.worker.analysis.call_graph import name_of

RANK0_FLAGS = frozenset(
    {
        "is_main_process", "is_local_main_process", "main_process", "is_main", "is_main_rank",
        "is_master", "is_local_master", "is_master_process", "is_master_rank", "master_process",
        "is_primary", "is_global_primary", "is_local_primary", "is_chief", "is_leader",
        "is_rank_zero", "is_rank_0", "is_rank0", "rank_zero", "is_global_zero", "is_local_zero",
        "is_world_process_zero", "is_local_process_zero", "is_first_rank", "is_lead_rank",
    }
)  # fmt: skip
"""Names of flags and of functions, but for underscores before them."""

RANK_NAMES = ("process_index", "gpu_id", "gpu", "device_id")
"""Names under which scripts keep a rank, or the number of their device."""

OTHER_RANKS = ("lora", "low_rank", "matrix", "max_rank", "tensor")
"""In names of ranks that are none of a process."""

RANK_WORDS = re.compile(
    rf"(?i)rank\b|\b(?:_*(?:{'|'.join(sorted(RANK0_FLAGS))})|{'|'.join(RANK_NAMES)})\b".encode()
)
"""In the text of whatever asks by one of these."""

Comparison = tuple[type[ast.cmpop], int]

RANK0_COMPARISONS: dict[bool, tuple[Comparison, ...]] = {
    True: ((ast.Eq, 0), (ast.LtE, 0), (ast.Lt, 1)),
    False: ((ast.NotEq, 0), (ast.Gt, 0), (ast.GtE, 1)),
}
"""`rank == 0` and what means the same, and its opposites."""

MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


def rank0_conditions(test: ast.expr, sense: bool) -> list[ast.expr]:
    """The parts of `test` that are `sense` on rank 0 alone, if it needs one to be so."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if sense else ast.Or):
        return [one for value in test.values for one in rank0_conditions(value, sense)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        positive = _is_flag(test.operand) if not sense else _is_rank(test.operand)
        return [test] if positive else []
    if sense and _is_flag(test):
        return [test]
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _compares(test, sense):
        return [test]
    return []


def compared_ranks(test: ast.expr) -> list[ast.expr]:
    """What `test` takes for a rank, to be compared with this one's."""
    if isinstance(test, ast.Compare):
        return [one for one in (test.left, *test.comparators) if _is_rank(one)]
    if isinstance(test, ast.UnaryOp) and _is_rank(test.operand):
        return [test.operand]
    return []


def _compares(test: ast.Compare, sense: bool) -> bool:
    operator, left, right = type(test.ops[0]), test.left, test.comparators[0]
    if operator is (ast.In if sense else ast.NotIn):
        return _is_rank(left) and _is_zero_or_none(right)
    if _is_rank(right):
        operator, left, right = MIRRORED.get(operator, operator), right, left
    if not _is_rank(left) or not isinstance(right, ast.Constant):
        return False
    return any(
        operator is one and right.value in (at, str(at)) for one, at in RANK0_COMPARISONS[sense]
    )


def _is_zero_or_none(node: ast.expr) -> bool:
    """`(-1, 0)`: scripts that also run without ranks take -1 for their number."""
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        return False
    return {ast.unparse(one) for one in node.elts} in ({"-1", "0"}, {"0"}, {"None", "0"})


def _is_flag(node: ast.expr) -> bool:
    return name_of(node.func if isinstance(node, ast.Call) else node).lstrip("_") in RANK0_FLAGS


def _is_rank(node: ast.expr) -> bool:
    """Is it a rank by its name: of a variable, an attribute, a function, or of the environment?"""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.upper() in ("RANK", "LOCAL_RANK")
    if isinstance(node, ast.Call):
        return _is_rank(node.func) or any(map(_is_rank, node.args))
    if isinstance(node, ast.Subscript):
        return _is_rank(node.slice) or _is_rank(node.value)
    name = name_of(node).lower()
    if any(other in name for other in OTHER_RANKS):
        return False
    return name in RANK_NAMES or name.endswith("rank")
