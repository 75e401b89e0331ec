"""Conditions that no rank but 0 fulfils, of all processes or of a node's: no other rank executes
what they guard.

Elsewhere a flag is known by its name, and a survivor that takes such code for rank 0's does it for
nobody. Here what is not certain is no guard: a rank among shards (`shard_rank == 0`), a flag that
the project gives another meaning.
"""

import ast
from collections.abc import Iterable

from recoverrun.worker.analysis.bare_names import Function, name_of
from recoverrun.worker.analysis.rank_conditions import (
    RANK0_FLAGS,
    BoundNames,
    compared_ranks,
    is_world_flag,
    is_world_rank,
    rank0_conditions,
)
from recoverrun.worker.analysis.syntax_trees import walk

GUARDS = frozenset({"rank_zero_only", "on_main_process"})
"""Decorators of frameworks: the body of such a function is for rank 0 alone."""


BoundModule = tuple[ast.Module, BoundNames]
"""A module, and the names that it binds to ranks."""


class Rank0Guards:
    """The guards of a project with these modules."""

    def __init__(self, modules: Iterable[BoundModule]) -> None:
        self._others = frozenset(name for one in modules for name in _other_meanings(*one))

    def asked(self, test: ast.expr, sense: bool, bound: BoundNames) -> ast.expr | None:
        """Return the part of `test` that is `sense` on rank 0 alone, if it needs one to be so."""
        parts = rank0_conditions(test, sense, bound)
        return next((one for one in parts if self._is_certain(one, bound)), None)

    def _is_certain(self, condition: ast.expr, bound: BoundNames) -> bool:
        if isinstance(condition, ast.UnaryOp):
            return self._is_certain(condition.operand, bound)
        if ranks := compared_ranks(condition, bound):
            return all(is_world_rank(one, bound) or _is_local(one) for one in ranks)
        if is_world_rank(condition, bound) or _is_flag(condition, bound):
            return True
        name = name_of(condition.func if isinstance(condition, ast.Call) else condition)
        return name.lstrip("_") in RANK0_FLAGS and name not in self._others


def is_guarded(function: Function) -> bool:
    """True if a decorator lets rank 0 alone execute it."""
    decorators = (one.func if isinstance(one, ast.Call) else one for one in function.decorator_list)
    return any(name_of(one) in GUARDS for one in decorators)


def _is_flag(value: ast.expr, bound: BoundNames) -> bool:
    """True of a flag by what it is bound to, and of a comparison of a rank of the world."""
    by_name = isinstance(value, ast.Name | ast.Attribute)
    return (by_name or bool(compared_ranks(value, bound))) and is_world_flag(value, bound)


def _is_local(node: ast.expr) -> bool:
    """True of the rank among the processes of a node."""
    names = [name_of(one) for one in walk(node)]
    texts = [one.value for one in walk(node) if isinstance(one, ast.Constant)]
    return any("local" in str(one).lower() for one in (*names, *texts))


def _other_meanings(tree: ast.Module, bound: BoundNames) -> Iterable[str]:
    """Yield the names that a module binds to anything else than whether this is rank 0."""
    for node in walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                if not (isinstance(value, ast.Constant) or _is_flag(value, bound)):
                    yield from map(name_of, targets)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                given = [one.value for one in walk(node) if isinstance(one, ast.Return)]
                values = [one for one in given if one and not isinstance(one, ast.Constant)]
                if not (values and all(_is_flag(one, bound) for one in values)):
                    yield node.name
            case ast.arg(arg=name):
                yield name
