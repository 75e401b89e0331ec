"""What a script does on rank 0 alone, such as saving, and who does it once rank 0 is lost.

    if rank == 0:                  if __recoverrun__.first(ID, True, rank == 0, rank):
        torch.save(...)     ->         with __recoverrun__.leading(ID):
                                           torch.save(...)

    if not is_main_process:        if __recoverrun__.first(ID, False, not is_main_process):
        return              ->         return
    log(...)                       with __recoverrun__.leading(ID):
                                       log(...)

As long as rank 0 lives nothing is different. Then a survivor, its deputy, answers as rank 0 would.
It draws no numbers of its own in there, and an error does not end it: that of a call that stands by
itself, as to a log that only rank 0 had opened, ends this call, another what is left of the block.

Only that is handed on which nobody answers to: no `else`, no collective call, no backward. In a
function that broadcasts, a choice whose other side is a plain value is made once more:

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
from recoverrun.worker.analysis.rank_conditions import compared_ranks, rank0_conditions
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
"""What this module has put there."""

REPEATABLE = frozenset(
    {"tensor", "as_tensor", "zeros", "empty", "zeros_like", "int", "float", "bool", "list", "to"}
)
"""Calls that may be made twice."""

Rank0Blocks = dict[str, Lone]
"""Where code is meant for rank 0 alone. What comes of it may be broadcast (`broadcasts`)."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def transform(tree: ast.Module, filename: str) -> Rank0Blocks:
    """Let a deputy do what the module does on rank 0 alone. Changes `tree`; returns where."""
    rewriter = _Rewriter(filename)
    rewriter.visit(tree)
    return rewriter.found


class _Rewriter(ast.NodeTransformer):
    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.found: Rank0Blocks = {}
        self._names: list[str] = []  # of the functions and classes around
        self._loops = 0  # around, in this function
        self._decided: frozenset[str] = frozenset()  # by rank 0 alone, in this function
        self._broadcasts = False  # this function does

    def visit_Module(self, node: ast.Module) -> ast.AST:
        return self._scope(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A model's forward may be compiled, by what knows nothing of us."""
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
        self._loops, self._decided = 0, frozenset(_decided(node.body))
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
        block = [one for statement in block for one in self._decision(statement)]
        for place, statement in enumerate(block):
            if not isinstance(statement, ast.If) or statement.orelse:
                continue
            where, rest = f"{self.filename}:{statement.lineno}", block[place + 1 :]
            if _only_leaves(statement.body):
                told = rank0_conditions(statement.test, False)
                if told and rest and not _communicates(rest):
                    self._tell(statement, told, False)
                    self.found[where] = Lone(written_paths(rest), read_paths(rest))
                    return [*block[: place + 1], self._leading(rest, where, [])]
            elif not _communicates(statement.body) and (
                told := rank0_conditions(statement.test, True)
            ):
                made = self._made(statement.test, told[0], statement.body)
                self._tell(statement, told, True)
                writes = derived_paths(written_paths(statement.body), rest)
                self.found[where] = Lone(writes, read_paths(statement.body), made)
                statement.body = [self._leading(statement.body, where, rest)]
        return block

    def _decision(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """A choice between what rank 0 has and what all others have, made once more if need be."""
        yield statement
        if (choice := _choice(statement)) is None:
            return
        test, sense, own = choice
        where = f"{self.filename}:{statement.lineno}"
        (told,) = rank0_conditions(test, sense)
        calls = _called(own) - REPEATABLE
        decides = self._broadcasts and (calls or not self._decided.isdisjoint(read_paths(own)))
        made = self._made(test, told, own) if calls else ()
        self.found[where] = Lone(written_paths(own) if decides else (), read_paths(own), made)
        if self._broadcasts or made:
            swap = {id(told): self._asked("stands_in", told, where, sense)}
            body = [self._leading(own, where, [])]
            yield ast.copy_location(ast.If(_swapped(test, swap), body, []), statement)

    def _made(self, test: ast.expr, told: ast.expr, body: Sequence[ast.stmt]) -> tuple[Making, ...]:
        """What rank 0 makes there for later, unless that is in a loop.

        Who is told by `told` that this is not rank 0 does not ask the rest of `test`.
        """
        asked = test.values if isinstance(test, ast.BoolOp) else [test]
        if self._loops or told not in asked:
            return ()
        rest = asked[asked.index(told) + 1 :]
        names = self._names[:-1] if self._names[-1:] == ["<locals>"] else self._names
        return makings(body, rest, ".".join(names), self.filename)

    def _tell(self, statement: ast.If, told: list[ast.expr], sense: bool) -> None:
        where = f"{self.filename}:{statement.lineno}"
        swap = {id(one): self._asked("first", one, where, sense) for one in told}
        statement.test = _swapped(statement.test, swap)

    def _asked(self, method: str, told: ast.expr, where: str, sense: bool) -> ast.Call:
        return _call(method, told, where, sense, told, *map(copy.deepcopy, compared_ranks(told)))

    def _leading(self, body: list[ast.stmt], where: str, rest: list[ast.stmt]) -> ast.stmt:
        return _block(self._each_call(body, rest), where)

    def _each_call(self, body: list[ast.stmt], rest: list[ast.stmt]) -> list[ast.stmt]:
        """The same with a block of its own around calls that stand by themselves."""
        found: list[ast.stmt] = []
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
            found.append(statement)
        return found


Choice = tuple[ast.expr, bool, list[ast.stmt]]
"""What is asked, what that is on rank 0, and what is done there."""


def _choice(statement: ast.stmt) -> Choice | None:
    """A copy of one, if it is so simple that rank 0's side can be taken after the others' side."""
    if isinstance(statement, ast.If) and statement.orelse:
        if (sense := _asked_first(statement.test)) is None:
            return None
        own, others = (statement.body, statement.orelse)[:: 1 if sense else -1]
        simple = all(isinstance(one, ast.Assign | ast.Pass) and _is_plain(one) for one in others)
        test, own = copy.deepcopy((statement.test, own))
    elif isinstance(statement, ast.Assign):
        asked = [node for node in walk(statement.value) if isinstance(node, ast.IfExp)]
        if len(asked) != 1 or (sense := _asked_first(asked[0].test)) is None:
            return None
        (choice,) = asked
        chosen, other = (choice.body, choice.orelse)[:: 1 if sense else -1]
        simple = _is_plain(_with(statement, choice, ast.Constant(None))) and _is_plain(other)
        test, own = copy.deepcopy((choice.test, [_with(statement, choice, chosen)]))
    else:
        return None
    return (test, sense, own) if simple and not _communicates(own) else None


def _asked_first(test: ast.expr) -> bool | None:
    """What the first thing that `test` asks is on rank 0 alone; None if it does not ask for it."""
    if rank0_conditions(test, False) == [test]:
        return False
    begins = test.values[0] if isinstance(test, ast.BoolOp) else test
    return True if rank0_conditions(test, True) == [begins] else None


def _with(statement: ast.stmt, old: ast.expr, new: ast.expr) -> ast.stmt:
    """A copy that has `new` in the place of `old`."""
    return copy.deepcopy(statement, {id(old): new})


def _is_plain(node: ast.AST) -> bool:
    awaited = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return _called([node]) <= REPEATABLE and not any(isinstance(one, awaited) for one in walk(node))


def _called(body: Iterable[ast.AST]) -> set[str]:
    """Names of the calls in this function itself."""
    return {name_of(node.func) for node in scope_nodes(body) if isinstance(node, ast.Call)}


def _decided(body: Sequence[ast.stmt]) -> tuple[str, ...]:
    """Names of what rank 0 alone assigns, and what is made of it."""
    asked = (node for node in scope_nodes(body) if isinstance(node, ast.If))
    own = [one for node in asked if rank0_conditions(node.test, True) for one in node.body]
    return derived_paths(written_paths(own), body)


def _swapped(test: ast.expr, swap: dict[int, ast.Call]) -> ast.expr:
    """`test` with some parts replaced; they are under nothing but `and` and `or`."""
    if isinstance(test, ast.BoolOp):
        test.values = [_swapped(value, swap) for value in test.values]
    return swap.get(id(test), test)


def _only_leaves(body: Sequence[ast.stmt]) -> bool:
    """Is it no more than the end of the function or the iteration?"""
    only = body[0] if len(body) == 1 else None
    return isinstance(only, ast.Continue | ast.Return)


def _communicates(body: Sequence[ast.stmt]) -> bool:
    """Would others have to do the same, or wait for an answer?"""
    nodes = [node for statement in body for node in walk(statement)]
    calls = {name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    ours = any(_is_of_runtime(node) and node.attr not in INSERTED for node in nodes)
    ours |= any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in nodes)
    return ours or not calls.isdisjoint(COMMUNICATION)


def _is_of_runtime(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Is it a method of the runtime?"""
    owner = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == RUNTIME_NAME


def _is_ours(statement: ast.stmt) -> bool:
    """Is it a block of `leading`?"""
    call = statement.items[0].context_expr if isinstance(statement, ast.With) else None
    return isinstance(call, ast.Call) and _is_of_runtime(call.func)


def _block(body: list[ast.stmt], where: str) -> ast.stmt:
    call = _call("leading", body[0], where)
    return ast.copy_location(ast.With([ast.withitem(call)], body), body[0])


def _call(method: str, at: ast.expr | ast.stmt, *arguments: str | bool | ast.expr) -> ast.Call:
    runtime = ast.Name(RUNTIME_NAME, ast.Load())
    given = [one if isinstance(one, ast.expr) else ast.Constant(one) for one in arguments]
    call = ast.Call(ast.Attribute(runtime, method, ast.Load()), given, [])
    for node in (runtime, call.func, call, *given):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, at)
    return call
