"""A transformer that lets another rank do what the script does on rank 0 only, such as saving.

    if rank == 0:                  if __recoverrun__.first(ID, True, rank == 0, rank):
        torch.save(...)     ->         with __recoverrun__.leading(ID):
                                           torch.save(...)

    if not is_main_process:        if __recoverrun__.first(ID, False, not is_main_process):
        return              ->         return
    log(...)                       with __recoverrun__.leading(ID):
                                       log(...)

Nothing changes as long as rank 0 lives. Once it is lost, a survivor, its deputy, takes the branch
of rank 0. It draws no numbers of its own in there, and errors do not end it: an error in a call
statement (such as one to a log that only rank 0 had opened) ends that call, any other error ends
the block.

Only code that other ranks do not take part in is handed over: no `else`, no collective call, no
backward. In a function that broadcasts, a choice whose other side is a plain value is repeated:

    said = [stop if rank == 0 else None]     ->     if __recoverrun__.stands_in(ID, True, ...):
                                                        with __recoverrun__.leading(ID):
                                                            said = [stop]
"""

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from recoverrun.worker.analysis.access_paths import (
    derived_paths,
    makings,
    paths_changed_by,
    read_paths,
    written_paths,
)
from recoverrun.worker.analysis.call_graph import BACKWARD, name_of
from recoverrun.worker.analysis.rank_conditions import (
    BoundNames,
    bound_names,
    compared_ranks,
    rank0_conditions,
)
from recoverrun.worker.analysis.scopes import scope_nodes
from recoverrun.worker.analysis.syntax_trees import blocks, visit_statements, walk
from recoverrun.worker.instrumentation import RUNTIME_NAME, Lone, Making

BROADCASTS = frozenset({"broadcast", "broadcast_object_list"})

COMMUNICATION = frozenset(
    {
        "all_reduce", "reduce", "all_gather", "gather", "all_gather_object", "gather_object",
        "scatter", "scatter_object_list", "barrier", "send", "recv", "isend", "irecv",
        "batch_isend_irecv", "wait_for_everyone", "init_process_group", "destroy_process_group",
        *BROADCASTS, *BACKWARD,
    }
)  # fmt: skip

INSERTED = frozenset({"first", "leading", "stands_in"})
"""Methods of the runtime that this module inserts calls of."""

REPEATABLE = frozenset(
    {"tensor", "as_tensor", "zeros", "empty", "zeros_like", "int", "float", "bool", "list", "to"}
)
"""Functions that may be called twice."""

Rank0Blocks = dict[str, Lone]
"""Blocks of code for rank 0 only, by place. Their results may be broadcast (`broadcasts`)."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def transform(tree: ast.Module, filename: str) -> Rank0Blocks:
    """Let a deputy do what the module does on rank 0 only. Changes `tree`; returns the blocks."""
    rewriter = _Rewriter(filename, bound_names(tree))
    rewriter.visit(tree)
    return rewriter.found


class _Rewriter(ast.NodeTransformer):
    def __init__(self, filename: str, bound: BoundNames) -> None:
        self.filename = filename
        self._bound = bound
        self.found: Rank0Blocks = {}
        self._names: list[str] = []  # of the functions and classes around
        self._loops = 0  # around, in this function
        self._decided: frozenset[str] = frozenset()  # names that only rank 0 assigns, here
        self._broadcasts = False  # this function broadcasts

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._scope(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave a model's `forward` unchanged: a compiler may compile it."""
        return node if node.name == "forward" else self._scope(node, node.name, "<locals>")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._scope(node, node.name, "<locals>")

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        return node

    def _scope(self, node: ast.Module | Function, *names: str) -> ast.AST:
        outer = self._loops, self._decided, self._broadcasts
        self._loops, self._decided = 0, frozenset(_decided(node.body, self._bound))
        self._broadcasts = not _called(node.body).isdisjoint(BROADCASTS)
        self._names.extend(names)
        self.generic_visit(node)
        del self._names[len(self._names) - len(names) :]
        self._loops, self._decided, self._broadcasts = outer
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        loop = isinstance(node, ast.For | ast.While | ast.AsyncFor)
        self._loops += loop
        visit_statements(self, node)
        for field, block in blocks(node):
            if field not in ("handlers", "cases"):
                setattr(node, field, self._block(block))
        self._loops -= loop
        return node

    def _block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        block = [made for statement in block for made in self._decision(statement)]
        for place, statement in enumerate(block):
            if not isinstance(statement, ast.If) or statement.orelse:
                continue
            where, rest = f"{self.filename}:{statement.lineno}", block[place + 1 :]
            if _only_leaves(statement.body):
                conditions = rank0_conditions(statement.test, False, self._bound)
                if conditions and rest and not _communicates(rest):
                    self._tell(statement, conditions, False)
                    self.found[where] = Lone(written_paths(rest), read_paths(rest))
                    return [*block[: place + 1], self._leading(rest, where, [])]
            elif not _communicates(statement.body) and (
                conditions := rank0_conditions(statement.test, True, self._bound)
            ):
                made = self._made(statement.test, conditions[0], statement.body)
                self._tell(statement, conditions, True)
                writes = derived_paths(written_paths(statement.body), rest)
                self.found[where] = Lone(writes, read_paths(statement.body), made)
                statement.body = [self._leading(statement.body, where, rest)]
        return block

    def _decision(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the statement, and then a repetition if it chooses between two ranks' values."""
        yield statement
        if (choice := _choice(statement, self._bound)) is None:
            return
        test, sense, rank0_body = choice
        where = f"{self.filename}:{statement.lineno}"
        (condition,) = rank0_conditions(test, sense, self._bound)
        calls = _called(rank0_body) - REPEATABLE
        decides = self._broadcasts and (
            calls or not self._decided.isdisjoint(read_paths(rank0_body))
        )
        made = self._made(test, condition, rank0_body) if calls else ()
        self.found[where] = Lone(
            written_paths(rank0_body) if decides else (), read_paths(rank0_body), made
        )
        if self._broadcasts or made:
            swap = {id(condition): self._asked("stands_in", condition, where, sense)}
            body = [self._leading(rank0_body, where, [])]
            yield ast.copy_location(ast.If(_swapped(test, swap), body, []), statement)

    def _made(
        self, test: ast.expr, condition: ast.expr, body: Sequence[ast.stmt]
    ) -> tuple[Making, ...]:
        """Return what rank 0 makes in `body` for later, unless it is in a loop.

        A rank that `condition` shows not to be rank 0 does not evaluate the rest of `test`.
        """
        asked = test.values if isinstance(test, ast.BoolOp) else [test]
        if self._loops or condition not in asked:
            return ()
        rest = asked[asked.index(condition) + 1 :]
        names = self._names[:-1] if self._names[-1:] == ["<locals>"] else self._names
        return makings(body, rest, ".".join(names), self.filename)

    def _tell(self, statement: ast.If, conditions: list[ast.expr], sense: bool) -> None:
        where = f"{self.filename}:{statement.lineno}"
        swap = {id(part): self._asked("first", part, where, sense) for part in conditions}
        statement.test = _swapped(statement.test, swap)

    def _asked(self, method: str, condition: ast.expr, where: str, sense: bool) -> ast.Call:
        return _call(
            method,
            condition,
            where,
            sense,
            condition,
            *map(copy.deepcopy, compared_ranks(condition, self._bound)),
        )

    def _leading(self, body: list[ast.stmt], where: str, rest: list[ast.stmt]) -> ast.stmt:
        return _block(self._each_call(body, rest), where)

    def _each_call(self, body: list[ast.stmt], rest: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements with a block of its own around each call statement."""
        statements: list[ast.stmt] = []
        for place, statement in enumerate(body):
            follows = [*body[place + 1 :], *rest]
            if _is_ours(statement):
                pass
            elif isinstance(statement, ast.If | ast.For | ast.While | ast.With):
                for field in ("body", "orelse"):
                    if inner := getattr(statement, field, None):
                        setattr(statement, field, self._each_call(inner, follows))
            elif isinstance(statement, ast.Expr):
                where = f"{self.filename}:{statement.lineno}"
                taints = derived_paths(paths_changed_by(statement), follows)
                self.found.setdefault(where, Lone((), (), (), taints))
                statement = _block([statement], where)
            statements.append(statement)
        return statements


Choice = tuple[ast.expr, bool, list[ast.stmt]]
"""The condition, its value on rank 0, and the statements that rank 0 executes."""


def _choice(statement: ast.stmt, bound: BoundNames) -> Choice | None:
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
        if len(asked) != 1 or (sense := _asked_first(asked[0].test, bound)) is None:
            return None
        (choice,) = asked
        chosen, other_value = (choice.body, choice.orelse)[:: 1 if sense else -1]
        simple = _is_plain(_with(statement, choice, ast.Constant(None))) and _is_plain(other_value)
        test, rank0_body = copy.deepcopy((choice.test, [_with(statement, choice, chosen)]))
    else:
        return None
    return (test, sense, rank0_body) if simple and not _communicates(rank0_body) else None


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
    return _called([node]) <= REPEATABLE and not any(
        isinstance(inner, awaited) for inner in walk(node)
    )


def _called(body: Iterable[ast.AST]) -> set[str]:
    """Return the names of calls in this function, not in functions in it."""
    return {name_of(node.func) for node in scope_nodes(body) if isinstance(node, ast.Call)}


def _decided(body: Sequence[ast.stmt], bound: BoundNames) -> tuple[str, ...]:
    """Return the names that only rank 0 assigns, and what is derived from them."""
    asked = (node for node in scope_nodes(body) if isinstance(node, ast.If))
    statements = [
        inner for node in asked if rank0_conditions(node.test, True, bound) for inner in node.body
    ]
    return derived_paths(written_paths(statements), body)


def _swapped(test: ast.expr, swap: dict[int, ast.Call]) -> ast.expr:
    """Return `test` with some parts replaced, which are operands of `and` and `or` only."""
    if isinstance(test, ast.BoolOp):
        test.values = [_swapped(value, swap) for value in test.values]
    return swap.get(id(test), test)


def _only_leaves(body: Sequence[ast.stmt]) -> bool:
    """True if the body only ends the function or the iteration."""
    only = body[0] if len(body) == 1 else None
    return isinstance(only, ast.Continue | ast.Return)


def _communicates(body: Sequence[ast.stmt]) -> bool:
    """True if other ranks would have to do the same, or wait for an answer."""
    nodes = [node for statement in body for node in walk(statement)]
    calls = {name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    ours = any(_is_of_runtime(node) and node.attr not in INSERTED for node in nodes)
    ours |= any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in nodes)
    return ours or not calls.isdisjoint(COMMUNICATION)


def _is_of_runtime(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """True for a method of the runtime."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == RUNTIME_NAME


def _is_ours(statement: ast.stmt) -> bool:
    """True for a block of `leading`."""
    call = statement.items[0].context_expr if isinstance(statement, ast.With) else None
    return isinstance(call, ast.Call) and _is_of_runtime(call.func)


def _block(body: list[ast.stmt], where: str) -> ast.stmt:
    call = _call("leading", body[0], where)
    return ast.copy_location(ast.With([ast.withitem(call)], body), body[0])


def _call(method: str, at: ast.expr | ast.stmt, *arguments: str | bool | ast.expr) -> ast.Call:
    runtime = ast.Name(RUNTIME_NAME, ast.Load())
    values = [
        argument if isinstance(argument, ast.expr) else ast.Constant(argument)
        for argument in arguments
    ]
    call = ast.Call(ast.Attribute(runtime, method, ast.Load()), values, [])
    for node in (runtime, call.func, call, *values):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return call
