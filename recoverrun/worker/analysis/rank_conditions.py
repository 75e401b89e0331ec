"""Conditions by which a script finds out whether it runs on rank 0, such as `rank == 0`.

They are recognised by the names of flags, functions and ranks that they use, and by names that the
module binds to such a thing and to nothing else (`me = dist.get_rank()`, `boss = me == 0`), also
those that it imports from a module of the project which does (`Exports`).
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from recoverrun.worker.analysis.access_paths import access_path
from recoverrun.worker.analysis.bare_names import name_of
from recoverrun.worker.analysis.syntax_trees import walk

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

WORLD_RANKS = frozenset({"rank", "global_rank", "world_rank", "ddp_rank", "dist_rank"})
"""Names for a place in the world, without leading underscores: no other rank of a process is 0
there.
"""

READS = frozenset({"int", "str", "get", "getenv", "pop", "setdefault"})
"""Functions that hand on a rank which stands in their first argument."""

_RANK_WORDS = re.compile(
    rf"(?i)rank\b|\b(?:_*(?:{'|'.join(sorted(RANK0_FLAGS))})|{'|'.join(RANK_NAMES)})\b".encode()
)
_IN_RANK_WORDS = (
    b"rank",
    *(word.encode() for word in (*sorted(RANK0_FLAGS), *RANK_NAMES) if "rank" not in word),
)
"""Parts of which one is in each match. Plain parts are found six times as fast."""

Comparison = tuple[type[ast.cmpop], int]


@dataclass(frozen=True, slots=True)
class BoundNames:
    """Names of variables, and of attributes (with a dot), that a module binds to nothing else."""

    ranks: frozenset[str] = frozenset()  # to this process's place in the world
    flags: frozenset[str] = frozenset()  # to whether that is zero

    @property
    def exports(self) -> "BoundNames":
        """The variables among them."""
        ranks, flags = (
            frozenset(name for name in names if "." not in name)
            for names in (self.ranks, self.flags)
        )
        return BoundNames(ranks, flags)


Exports = Mapping[str, BoundNames]
"""By the last part of a module's name: what others may import from it."""

NO_EXPORTS: Exports = {}
RANK, FLAG = (ast.parse(text, mode="eval").body for text in ("rank", "rank == 0"))


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


def bound_names(tree: ast.AST, exports: Exports = NO_EXPORTS) -> BoundNames:
    """Return the names that `tree` binds to a rank of the world, and those to whether it is zero.

    A constant may be bound to them as well, for a run of one process. Names of a module that is
    imported as a whole are dotted (`config.R`).
    """
    bound: dict[str, list[ast.expr | None]] = {}
    for name, value in _bindings(tree, exports):
        bound.setdefault(name, []).append(value)
    found = BoundNames()
    while True:
        ranks = {name for name, values in bound.items() if _all(values, is_world_rank, found)}
        flags = {name for name, values in bound.items() if _all(values, is_world_flag, found)}
        more = BoundNames(frozenset(ranks), frozenset(flags))
        if more == found:
            return found
        found = more


def may_ask_for_rank(text: bytes) -> bool:
    """True if a source may hold a condition by which it finds out that it runs on rank 0."""
    lower = text.lower()
    return any(part in lower for part in _IN_RANK_WORDS) and _RANK_WORDS.search(text) is not None


def rank0_conditions(test: ast.expr, sense: bool, bound: BoundNames) -> list[ast.expr]:
    """Return the parts of `test` that are `sense` on rank 0 only, if `test` needs one to be so."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if sense else ast.Or):
        return [part for value in test.values for part in rank0_conditions(value, sense, bound)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        positive = _is_rank(test.operand, bound) if sense else _is_flag(test.operand, bound)
        return [test] if positive else []
    if _is_flag(test, bound) if sense else is_world_rank(test, bound):
        return [test]
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _compares(test, sense, bound):
        return [test]
    return []


def compared_ranks(test: ast.expr, bound: BoundNames) -> list[ast.expr]:
    """Return the expressions in `test` that are compared as ranks."""
    if isinstance(test, ast.Compare):
        return [side for side in (test.left, *test.comparators) if _is_rank(side, bound)]
    if isinstance(test, ast.UnaryOp) and _is_rank(test.operand, bound):
        return [test.operand]
    return []


def _compares(test: ast.Compare, sense: bool, bound: BoundNames) -> bool:
    operator, left, right = type(test.ops[0]), test.left, test.comparators[0]
    if operator is (ast.In if sense else ast.NotIn):
        return _is_rank(left, bound) and _is_zero_or_none(right)
    if _is_rank(right, bound):
        operator, left, right = MIRRORED.get(operator, operator), right, left
    if not _is_rank(left, bound) or not isinstance(right, ast.Constant):
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


def _is_flag(node: ast.expr, bound: BoundNames) -> bool:
    if _key(node) in bound.flags or access_path(node) in bound.flags:
        return True
    return name_of(node.func if isinstance(node, ast.Call) else node).lstrip("_") in RANK0_FLAGS


def _is_rank(node: ast.expr, bound: BoundNames) -> bool:
    """True if a variable, attribute, function or environment variable is named as a rank."""
    if _key(node) in bound.ranks or access_path(node) in bound.ranks:
        return True
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.upper() in ("RANK", "LOCAL_RANK")
    if isinstance(node, ast.Call):
        return _is_rank(node.func, bound) or any(_is_rank(given, bound) for given in node.args)
    if isinstance(node, ast.Subscript):
        return _is_rank(node.slice, bound) or _is_rank(node.value, bound)
    name = name_of(node).lower()
    if any(part in name for part in OTHER_RANKS):
        return False
    return name in RANK_NAMES or name.endswith("rank")


# ------------------------------------------------------------------------- what names are bound to


def _all(
    values: Iterable[ast.expr | None],
    fits: Callable[[ast.expr, BoundNames], bool],
    found: BoundNames,
) -> bool:
    """True if each of `values` fits or is a constant, and one of them is none."""
    told = [value for value in values if not _is_constant(value)]
    return bool(told) and all(value is not None and fits(value, found) for value in told)


def _is_constant(node: ast.expr | None) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant)


def _key(node: ast.expr) -> str:
    """The name of a variable, that of an attribute with a dot; "" of anything else."""
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_world_rank(node: ast.expr, found: BoundNames) -> bool:
    """True of this process's place in the world, by names that are `found` to be bound to it."""
    match node:
        case ast.Name() | ast.Attribute():
            named = name_of(node).lower().lstrip("_") in WORLD_RANKS
            return named or not found.ranks.isdisjoint((_key(node), access_path(node)))
        case ast.Call(func=function, args=given):
            name = name_of(function)
            if name == "get_rank":
                return not given and not node.keywords
            return name in READS and bool(given) and is_world_rank(given[0], found)
        case ast.Subscript(slice=index):
            return isinstance(index, ast.Constant) and index.value == "RANK"
        case ast.IfExp(body=one, orelse=other):
            return _all([one, other], is_world_rank, found)
        case ast.Constant(value=value):
            return bool(value == "RANK")
    return False


def is_world_flag(node: ast.expr, found: BoundNames) -> bool:
    """True of what tells whether that place is zero."""
    if isinstance(node, ast.IfExp):
        return _all([node.body, node.orelse], is_world_flag, found)
    if isinstance(node, ast.Name | ast.Attribute):
        return not found.flags.isdisjoint((_key(node), access_path(node)))
    if rank0_conditions(node, True, found) != [node]:
        return False
    return all(is_world_rank(side, found) for side in compared_ranks(node, found))


def _bindings(tree: ast.AST, exports: Exports) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each bare name that is bound anywhere, with its value; None where that is not plain."""
    plain: set[int] = set()
    imported = list(_imports(tree, exports)) if exports else []
    told = {id(alias) for alias, name, _ in imported if name == (alias.asname or alias.name)}
    yield from ((name, value) for _, name, value in imported)
    for node in walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _bound_by(target, value, plain)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _bound_by(target, value, plain)
            case ast.NamedExpr(target=target, value=value):
                yield from _bound_by(target, value, plain)
            case ast.AnnAssign(target=target):
                plain.add(id(target))
    for node in walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()) if (
                id(node) not in plain
            ):
                yield _key(node), None
            case ast.arg(arg=name):
                yield name, None
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, None
                yield f".{name}", None
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield name, None
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, None
            case ast.MatchMapping(rest=str(name)):
                yield name, None
            case ast.alias(name=name, asname=other) if id(node) not in told:
                yield other or name.partition(".")[0], None


def _imports(tree: ast.AST, exports: Exports) -> Iterator[tuple[ast.alias, str, ast.expr]]:
    """Yield the names that `tree` imports of `exports`, each with its alias and what it means."""
    for node in walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        known = exports.get(_last(source), BoundNames())
        for alias in node.names:
            name, whole = alias.asname or alias.name, exports.get(_last(alias.name), BoundNames())
            for prefix, given in (
                (f"{name}.", whole),
                ("", known if name == "*" else BoundNames()),
            ):
                yield from ((alias, f"{prefix}{one}", RANK) for one in given.ranks)
                yield from ((alias, f"{prefix}{one}", FLAG) for one in given.flags)
            if alias.name in known.ranks:
                yield alias, name, RANK
            elif alias.name in known.flags:
                yield alias, name, FLAG


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _bound_by(
    target: ast.expr, value: ast.expr, plain: set[int]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names of an assignment whose value is told, and mark them as `plain`."""
    if isinstance(target, ast.Name | ast.Attribute):
        plain.add(id(target))
        yield _key(target), value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        if len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                yield from _bound_by(one, other, plain)
