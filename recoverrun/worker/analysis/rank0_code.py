"""Code for rank 0 alone: which statements it is, and which names nobody else reads or binds.

A statement is rank 0's if it stands under a condition that only rank 0 fulfils, and other ranks
have no part in it: no collective call, no backward. A *choice* has a side for rank 0 and one for
all others: `said = f() if rank == 0 else None`.
"""

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from recoverrun.worker.analysis.access_paths import derived_paths, written_paths
from recoverrun.worker.analysis.bare_names import BACKWARD, name_of
from recoverrun.worker.analysis.rank_conditions import BoundNames, rank0_conditions
from recoverrun.worker.analysis.scopes import scope_nodes
from recoverrun.worker.analysis.syntax_trees import blocks, walk
from recoverrun.worker.instrumentation import RUNTIME_NAME

SCATTERS = frozenset({"scatter", "scatter_object_list"})

SENDS = frozenset({"broadcast", "broadcast_object_list", *SCATTERS})
"""Calls by which rank 0 tells others what it has decided."""

COMMUNICATION = frozenset(
    {
        "all_reduce", "reduce", "all_gather", "gather", "all_gather_object", "gather_object",
        "barrier", "send", "recv", "isend", "irecv",
        "batch_isend_irecv", "wait_for_everyone", "init_process_group", "destroy_process_group",
        *SENDS, *BACKWARD,
    }
)  # fmt: skip

INSERTED = frozenset({"first", "asking", "leading", "stands_in", "bring"})
"""Methods of the runtime of which calls stand in code that was met already."""

REPEATABLE = frozenset(
    {"tensor", "as_tensor", "zeros", "empty", "zeros_like", "int", "float", "bool", "list", "to"}
)
"""Functions that may be called twice."""

Choice = tuple[ast.expr, bool, list[ast.stmt]]
"""The condition, its value on rank 0, and the statements that rank 0 executes."""


def choice_of(statement: ast.stmt, bound: BoundNames) -> Choice | None:
    """Return a choice, copied, if rank 0's side can be executed after the others' side."""
    if isinstance(statement, ast.If) and statement.orelse:
        if (sense := _asked_first(statement.test, bound)) is None:
            return None
        rank0_body, other_body = (statement.body, statement.orelse)[:: 1 if sense else -1]
        simple = all(
            isinstance(plain, ast.Assign | ast.Pass) and _is_plain(plain) for plain in other_body
        )
        test, rank0_body = copy.deepcopy((statement.test, rank0_body))
    elif isinstance(statement, ast.Assign):
        asked = [node for node in walk(statement.value) if isinstance(node, ast.IfExp)]
        if not asked:
            return _decision_of(statement, bound)
        if len(asked) != 1 or (sense := _asked_first(asked[0].test, bound)) is None:
            return None
        (choice,) = asked
        chosen, other_value = (choice.body, choice.orelse)[:: 1 if sense else -1]
        simple = _is_plain(_with(statement, choice, ast.Constant(None))) and _is_plain(other_value)
        test, rank0_body = copy.deepcopy((choice.test, [_with(statement, choice, chosen)]))
    else:
        return None
    return (test, sense, rank0_body) if simple and not communicates(rank0_body) else None


def _decision_of(statement: ast.Assign, bound: BoundNames) -> Choice | None:
    """The same of `stop = rank == 0 and done()`: all others have what `rank == 0` is for them."""
    decisions = [
        (node, isinstance(node.op, ast.And))
        for node in walk(statement.value)
        if isinstance(node, ast.BoolOp)
    ]
    asked = [(node, sense) for node, sense in decisions if rank0_conditions(node, sense, bound)]
    if len(asked) != 1:
        return None
    ((decision, sense),) = asked
    test = decision.values[0]
    if rank0_conditions(decision, sense, bound) != [test]:
        return None
    rank0_body = [_with(statement, test, ast.copy_location(ast.Constant(sense), test))]
    simple = _is_plain(_with(statement, decision, ast.Constant(None)))
    return (
        (copy.deepcopy(test), sense, rank0_body)
        if simple and not communicates(rank0_body)
        else None
    )


def computes(body: Iterable[ast.AST]) -> bool:
    """True if `body` compares or calculates: what it decides is not what it has kept."""
    kinds = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp)
    return any(isinstance(node, kinds) for node in scope_nodes(body))


def given_choice(statement: ast.stmt, bound: BoundNames) -> Choice | None:
    """Return a choice, copied, that stands as an argument in the call of a scatter.

    The statement that rank 0 executes is its argument alone.
    """
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or name_of(call.func) not in SCATTERS:
        return None
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    choices = [argument for argument in given if isinstance(argument, ast.IfExp)]
    if len(choices) != 1 or (sense := _asked_first(choices[0].test, bound)) is None:
        return None
    (choice,) = choices
    chosen, other = (choice.body, choice.orelse)[:: 1 if sense else -1]
    if not isinstance(other, ast.Constant) or other.value is not None:
        return None
    brought = ast.copy_location(ast.Expr(copy.deepcopy(chosen)), chosen)
    return copy.deepcopy(choice.test), sense, [brought]


def _asked_first(test: ast.expr, bound: BoundNames) -> bool | None:
    """Return the value on rank 0 of the first part of `test`; None if it does not ask the rank."""
    if rank0_conditions(test, False, bound) == [test]:
        return False
    begins = test.values[0] if isinstance(test, ast.BoolOp) else test
    return True if rank0_conditions(test, True, bound) == [begins] else None


def _with(statement: ast.stmt, old: ast.expr, new: ast.expr) -> ast.stmt:
    """Return a copy that has `new` in the place of `old`."""
    return copy.deepcopy(statement, {id(old): new})


def _is_plain(node: ast.AST) -> bool:
    awaited = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return called_names([node]) <= REPEATABLE and not any(
        isinstance(inner, awaited) for inner in walk(node)
    )


def called_names(body: Iterable[ast.AST]) -> set[str]:
    """Return the names of calls in this function, not in functions in it."""
    return {name_of(node.func) for node in scope_nodes(body) if isinstance(node, ast.Call)}


def has_displays(body: Iterable[ast.AST]) -> bool:
    """True if `body` makes a list, a dict or a set by writing it down."""
    displays = (ast.List, ast.Dict, ast.Set)
    return any(isinstance(node, displays) for node in scope_nodes(body))


def decided_names(body: Sequence[ast.stmt], bound: BoundNames) -> tuple[str, ...]:
    """Return the names that only rank 0 assigns, and what is derived from them."""
    asked = (node for node in scope_nodes(body) if isinstance(node, ast.If))
    statements = [
        inner for node in asked if rank0_conditions(node.test, True, bound) for inner in node.body
    ]
    return derived_paths(written_paths(statements), body)


def divided(test: ast.expr, first: ast.expr, sense: bool) -> list[ast.expr]:
    """Divide `test` behind `first`, an operand, if another operand follows."""
    kind = ast.And() if sense else ast.Or()
    operands = list(_operands(test, type(kind)))
    behind = operands.index(first) + 1
    parts = [part for part in (operands[:behind], operands[behind:]) if part]
    return [
        part[0] if len(part) == 1 else ast.copy_location(ast.BoolOp(kind, part), part[0])
        for part in parts
    ]


def _operands(test: ast.expr, kind: type[ast.boolop]) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, kind):
        for value in test.values:
            yield from _operands(value, kind)
    else:
        yield test


def only_leaves(body: Sequence[ast.stmt]) -> bool:
    """True if the body only ends the function or the iteration."""
    only = body[0] if len(body) == 1 else None
    return isinstance(only, ast.Continue | ast.Return)


def communicates(body: Sequence[ast.stmt]) -> bool:
    """True if other ranks would have to do the same, or wait for an answer."""
    nodes = [node for statement in body for node in walk(statement)]
    calls = {name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    ours = any(is_of_runtime(node) and node.attr not in INSERTED for node in nodes)
    ours |= any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in nodes)
    return ours or not calls.isdisjoint(COMMUNICATION)


def is_of_runtime(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """True for a method of the runtime."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == RUNTIME_NAME


Positions = frozenset[tuple[int, int]]
"""Lines and columns of names."""


def rank0_positions(tree: ast.AST, bound: BoundNames) -> Positions:
    """Return where code for rank 0 alone names something."""
    parts: list[ast.AST] = []
    todo: list[ast.AST] = [tree]
    for node in todo:
        for field, block in blocks(node):
            todo += block
            if field not in ("handlers", "cases"):
                for place, statement in enumerate(block):
                    parts += _rank0_parts(statement, block[place + 1 :], bound)
    return frozenset(_position(node) for part in parts for node in walk(part) if _is_name(node))


def _rank0_parts(
    statement: ast.stmt, rest: Sequence[ast.stmt], bound: BoundNames
) -> Sequence[ast.AST]:
    """Return what rank 0 alone executes of a statement, and of `rest`, which follows."""
    if (choice := choice_of(statement, bound)) is not None:
        _, _, rank0_body = choice  # what it assigns is what the other side assigns, too
        return [node for part in rank0_body for node in walk(part) if _is_loaded(node)]
    if not isinstance(statement, ast.If) or statement.orelse:
        return ()
    leaves = only_leaves(statement.body)
    lone = rest if leaves else statement.body
    conditions = rank0_conditions(statement.test, not leaves, bound)
    if not conditions or communicates(lone):
        return ()
    _, *asked = divided(statement.test, conditions[0], not leaves)
    return [*asked, *lone]


def within(scope: ast.stmt, rank0: Positions) -> Positions:
    """Return those of `rank0` that are in a function."""
    last = scope.end_lineno or scope.lineno
    return frozenset(position for position in rank0 if scope.lineno <= position[0] <= last)


def read_by_rank0_only(scope: ast.AST, rank0: Positions) -> frozenset[str]:
    """Return the variables of a function, or a module, that nothing but code for rank 0 reads."""
    names, others = set[str](), set[str]()
    for node in walk(scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            others.update(node.names)
        elif isinstance(node, ast.AugAssign) and _is_name(node.target):
            others.add(node.target.id)
        elif _is_loaded(node):
            (names if _position(node) in rank0 else others).add(node.id)
    return frozenset(names - others)


def moved_by_all(scope: ast.AST, rank0: Positions) -> frozenset[str]:
    """Return the variables that loops of a function, or a module, bind on other ranks, too."""
    loops = (node for node in walk(scope) if isinstance(node, ast.For | ast.While | ast.AsyncFor))
    return frozenset(
        node.id
        for loop in loops
        for node in walk(loop)
        if _is_name(node) and isinstance(node.ctx, ast.Store) and _position(node) not in rank0
    )


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _is_loaded(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]
