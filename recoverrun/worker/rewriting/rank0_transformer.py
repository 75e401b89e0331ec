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
the block. So do errors of what only rank 0 asks, as other ranks know the answer by their rank:

    if rank == 0 and loss < best:  ->    if __recoverrun__.first(ID, True, rank == 0, rank):
        torch.save(...)                      with __recoverrun__.asking(ID):
                                                 if loss < best:
                                                     with __recoverrun__.leading(ID): ...

Only code that other ranks do not take part in is handed over: no `else`, no collective call, no
backward. A choice whose other side is a plain value is repeated in a function that broadcasts, and
where only such code reads what is chosen:

    said = [stop if rank == 0 else None]     ->     if __recoverrun__.stands_in(ID, True, ...):
                                                        with __recoverrun__.leading(ID):
                                                            said = [stop]
"""

import ast
import copy
from collections.abc import Iterator, Sequence

from recoverrun.worker.analysis.access_paths import (
    derived_paths,
    makings,
    paths_changed_by,
    read_paths,
    written_paths,
)
from recoverrun.worker.analysis.rank0_code import (
    REPEATABLE,
    SENDS,
    Choice,
    Positions,
    called_names,
    choice_of,
    communicates,
    computes,
    decided_names,
    divided,
    given_choice,
    has_displays,
    is_of_runtime,
    moved_by_all,
    only_leaves,
    rank0_positions,
    read_by_rank0_only,
    within,
)
from recoverrun.worker.analysis.rank_conditions import (
    BoundNames,
    bound_names,
    compared_ranks,
    rank0_conditions,
)
from recoverrun.worker.analysis.syntax_trees import blocks, visit_statements
from recoverrun.worker.instrumentation import RUNTIME_NAME, Lone, Making

Rank0Blocks = dict[str, Lone]
"""Blocks of code for rank 0 only, by place. Their results may be broadcast (`broadcasts`)."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def transform(tree: ast.Module, filename: str, bound: BoundNames | None = None) -> Rank0Blocks:
    """Let a deputy do what the module does on rank 0 only. Changes `tree`; returns the blocks."""
    bound = bound or bound_names(tree)
    rewriter = _Rewriter(filename, bound, rank0_positions(tree, bound))
    rewriter.visit(tree)
    return rewriter.found


class _Rewriter(ast.NodeTransformer):
    def __init__(self, filename: str, bound: BoundNames, rank0: Positions) -> None:
        self.filename = filename
        self._bound = bound
        self._rank0 = rank0
        self.found: Rank0Blocks = {}
        self._names: list[str] = []  # of the functions and classes around
        self._loops = 0  # around, in this function
        self._decided: frozenset[str] = frozenset()  # names that only rank 0 assigns, here
        self._broadcasts = False  # this function broadcasts, or scatters
        self._own: frozenset[str] = frozenset()  # names that only rank 0 reads, here
        self._moved: frozenset[str] = frozenset()  # names that loops bind on all ranks, here

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
        outer = self._loops, self._decided, self._broadcasts, self._own, self._moved
        self._loops, self._decided = 0, frozenset(decided_names(node.body, self._bound))
        self._broadcasts = not called_names(node.body).isdisjoint(SENDS)
        here = self._rank0 if isinstance(node, ast.Module) else within(node, self._rank0)
        self._own = read_by_rank0_only(node, here) if here else frozenset()
        self._moved = moved_by_all(node, here) if here else frozenset()
        self._names.extend(names)
        self.generic_visit(node)
        del self._names[len(self._names) - len(names) :]
        self._loops, self._decided, self._broadcasts, self._own, self._moved = outer
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
            if only_leaves(statement.body):
                conditions = rank0_conditions(statement.test, False, self._bound)
                if conditions and rest and not communicates(rest):
                    asked = self._tell(statement, conditions, False)
                    lone = [*asked, *rest]
                    self.found[where] = Lone(written_paths(lone), self._lacked(lone))
                    after = [self._leading(rest, where, [])]
                    return [*block[: place + 1], *self._asking(asked, statement.body, after, where)]
            elif not communicates(statement.body) and (
                conditions := rank0_conditions(statement.test, True, self._bound)
            ):
                made = self._made(statement.test, conditions[0], statement.body)
                asked = self._tell(statement, conditions, True)
                lone = [*asked, *statement.body]
                writes = derived_paths(written_paths(lone), rest)
                self.found[where] = Lone(writes, self._lacked(lone), made)
                body = [self._leading(statement.body, where, rest)]
                statement.body = self._asking(asked, body, [], where) or body
        return block

    def _decision(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the statement: behind what rank 0 gives to it, and before a repetition if it
        chooses between two ranks' values.
        """
        if (given := given_choice(statement, self._bound)) is not None:
            yield from self._given(statement, given)
        yield statement
        if (choice := choice_of(statement, self._bound)) is None:
            return
        test, sense, rank0_body = choice
        where = f"{self.filename}:{statement.lineno}"
        (condition,) = rank0_conditions(test, sense, self._bound)
        calls = called_names(rank0_body) - REPEATABLE
        decides = self._broadcasts and (
            calls or computes(rank0_body) or not self._decided.isdisjoint(read_paths(rank0_body))
        )
        makes = calls or has_displays(rank0_body)
        made = self._made(test, condition, rank0_body) if makes else ()
        chosen = written_paths(rank0_body)
        self.found[where] = Lone(chosen if decides else (), self._lacked(rank0_body), made)
        if self._broadcasts or made or (chosen and self._own.issuperset(chosen)):
            yield self._repeated(statement, (test, sense, rank0_body))

    def _given(self, statement: ast.stmt, choice: Choice) -> Iterator[ast.stmt]:
        test, sense, (argument,) = choice
        assert isinstance(argument, ast.Expr), "the argument alone"
        reads = read_paths([argument])
        if called_names([argument]) or not self._decided.isdisjoint(reads):
            where = f"{self.filename}:{statement.lineno}"
            self.found[where] = Lone((), self._lacked([argument]))
            argument.value = _call("bring", argument, argument.value)
            yield self._repeated(statement, (test, sense, [argument]))

    def _repeated(self, statement: ast.stmt, choice: Choice) -> ast.stmt:
        """Return rank 0's side of a choice at `statement`, as its deputy executes it."""
        test, sense, rank0_body = choice
        where = f"{self.filename}:{statement.lineno}"
        (condition,) = rank0_conditions(test, sense, self._bound)
        asked = self._asked("stands_in", condition, where, sense)
        test, *alone = divided(_swapped(test, {id(condition): asked}), asked, sense)
        body = [self._leading(rank0_body, where, [])]
        body = self._asking(alone, body, [], where) or body
        return ast.copy_location(ast.If(test, body, []), statement)

    def _lacked(self, body: Sequence[ast.AST]) -> tuple[str, ...]:
        """Return the names that `body` reads and rank 0 may tell once: not what it had last."""
        return tuple(name for name in read_paths(body) if name not in self._moved)

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

    def _tell(self, statement: ast.If, conditions: list[ast.expr], sense: bool) -> list[ast.expr]:
        """Have the test ask the runtime. Return the part of it, if any, that rank 0 asks alone."""
        where = f"{self.filename}:{statement.lineno}"
        swap = {id(part): self._asked("first", part, where, sense) for part in conditions}
        test = _swapped(statement.test, swap)
        statement.test, *alone = divided(test, swap[id(conditions[0])], sense)
        return alone

    def _asking(
        self, alone: list[ast.expr], body: list[ast.stmt], after: list[ast.stmt], where: str
    ) -> list[ast.stmt]:
        """Return `body`, if rank 0 alone asks for it, and `after` as one block, else `after`."""
        if not alone:
            return after
        asked = ast.copy_location(ast.If(alone[0], copy.copy(body), []), alone[0])
        return [_block([asked, *after], where, "asking")]

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


def _swapped(test: ast.expr, swap: dict[int, ast.Call]) -> ast.expr:
    """Return `test` with some parts replaced, which are operands of `and` and `or` only."""
    if isinstance(test, ast.BoolOp):
        test.values = [_swapped(value, swap) for value in test.values]
    return swap.get(id(test), test)


def _is_ours(statement: ast.stmt) -> bool:
    """True for a block of `leading`."""
    call = statement.items[0].context_expr if isinstance(statement, ast.With) else None
    return isinstance(call, ast.Call) and is_of_runtime(call.func)


def _block(body: list[ast.stmt], where: str, method: str = "leading") -> ast.stmt:
    call = _call(method, body[0], where)
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
