"""Conditions by which a script finds out whether it runs on rank 0, such as `rank == 0`.

They are recognised by the names of flags, functions and ranks that they use.
"""

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
"""Names of flags and functions that are true on rank 0, without leading underscores."""

RANK_NAMES = ("process_index", "gpu_id", "gpu", "device_id")
"""Names for a rank, or for the number of a device, that do not end in `rank`."""

OTHER_RANKS = ("lora", "low_rank", "matrix", "max_rank", "tensor")
"""Parts of names that end in `rank` but are no rank of a process."""

RANK_WORDS = re.compile(
    rf"(?i)rank\b|\b(?:_*(?:{'|'.join(sorted(RANK0_FLAGS))})|{'|'.join(RANK_NAMES)})\b".encode()
)
"""Matches any text that holds such a condition."""

Comparison = tuple[type[ast.cmpop], int]

RANK0_COMPARISONS: dict[bool, tuple[Comparison, ...]] = {
    True: ((ast.Eq, 0), (ast.LtE, 0), (ast.Lt, 1)),
    False: ((ast.NotEq, 0), (ast.Gt, 0), (ast.GtE, 1)),
}
"""`rank == 0` and comparisons that mean the same (True), and their opposites (False)."""

MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


def rank0_conditions(test: ast.expr, sense: bool) -> list[ast.expr]:
    """Return the parts of `test` that are `sense` on rank 0 only, if `test` needs one to be so."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if sense else ast.Or):
        return [part for value in test.values for part in rank0_conditions(value, sense)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        positive = _is_flag(test.operand) if not sense else _is_rank(test.operand)
        return [test] if positive else []
    if sense and _is_flag(test):
        return [test]
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _compares(test, sense):
        return [test]
    return []


def compared_ranks(test: ast.expr) -> list[ast.expr]:
    """Return the expressions in `test` that are compared as ranks."""
    if isinstance(test, ast.Compare):
        return [side for side in (test.left, *test.comparators) if _is_rank(side)]
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
        operator is kind and right.value in (rank, str(rank))
        for kind, rank in RANK0_COMPARISONS[sense]
    )


def _is_zero_or_none(node: ast.expr) -> bool:
    """True for `(-1, 0)` and the like: scripts that also run without ranks use -1 as their rank."""
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        return False
    return {ast.unparse(element) for element in node.elts} in ({"-1", "0"}, {"0"}, {"None", "0"})


def _is_flag(node: ast.expr) -> bool:
    return name_of(node.func if isinstance(node, ast.Call) else node).lstrip("_") in RANK0_FLAGS


def _is_rank(node: ast.expr) -> bool:
    """True if a variable, attribute, function or environment variable is named as a rank."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.upper() in ("RANK", "LOCAL_RANK")
    if isinstance(node, ast.Call):
        return _is_rank(node.func) or any(map(_is_rank, node.args))
    if isinstance(node, ast.Subscript):
        return _is_rank(node.slice) or _is_rank(node.value)
    name = name_of(node).lower()
    if any(part in name for part in OTHER_RANKS):
        return False
    return name in RANK_NAMES or name.endswith("rank")
