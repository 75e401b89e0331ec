"""Live variables: which names a block may read before it binds them.

`live_in` errs towards more names: a name counts as read if some path may read it before it is
surely written, and a nested function reads all its free names where it is defined. Two assumptions
make it useful: a `with` block other than `contextlib.suppress` does not swallow exceptions, and
names are read by statements only (not through frames or the `__dict__` of the module).
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recoverrun.worker.analysis.scopes import (
    NESTED,
    bound_names,
    deleted_names,
    free_reads,
    import_name,
    outer_parts,
)
from recoverrun.worker.analysis.syntax_trees import children, walk

DYNAMIC = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""These read names that the text does not mention."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """The effects of a block on the names of its scope."""

    assigned: frozenset[str]
    live_in: frozenset[str]


def liveness_of(block: Sequence[ast.stmt]) -> Liveness:
    assigned = bound_names(block)
    reads = _Reads()
    reads.block(block, set())
    if any(_is_dynamic(node) for statement in block for node in walk(statement)):
        reads.live |= assigned
    return Liveness(frozenset(assigned), frozenset(reads.live))


def _is_dynamic(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DYNAMIC
    )


def _meet(*paths: set[str] | None) -> set[str] | None:
    """Return what is surely written where paths join; None if none of them gets there."""
    open_paths = [path for path in paths if path is not None]
    return set.intersection(*open_paths) if open_paths else None


def _swallows(item: ast.withitem) -> bool:
    call = item.context_expr
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "suppress"


def _is_irrefutable(case: ast.match_case) -> bool:
    pattern = case.pattern
    return case.guard is None and isinstance(pattern, ast.MatchAs) and pattern.pattern is None


class _Reads:
    """Walks a block in the order of execution.

    `written` holds the names that are surely written at a point; statements change it in place.
    A statement after which the next one is not reached returns None instead.
    """

    def __init__(self) -> None:
        self.live: set[str] = set()

    def block(self, statements: Sequence[ast.stmt], written: set[str]) -> set[str] | None:
        current: set[str] | None = set(written)
        for statement in statements:
            if current is None:
                return None
            current = self._statement(statement, current)
        return current

    def _read(self, names: Iterable[str], written: set[str]) -> None:
        self.live.update(name for name in names if name not in written)

    def _statement(self, node: ast.stmt, written: set[str]) -> set[str] | None:
        match node:
            case ast.If():
                self._expression(node.test, written)
                return _meet(self.block(node.body, written), self.block(node.orelse, written))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, written)
            case ast.With() | ast.AsyncWith():
                return self._with(node, written)
            case ast.Try() | ast.TryStar():
                return self._try(node, written)
            case ast.Match():
                return self._match(node, written)
            case ast.Return() | ast.Raise():
                for child in children(node):
                    self._expression(child, written)
                return None
            case ast.Break() | ast.Continue():
                return None
            case _:
                self._simple(node, written)
                return written

    def _simple(self, node: ast.stmt, written: set[str]) -> None:
        match node:
            case ast.Assign():
                self._expression(node.value, written)
                for target in node.targets:
                    self._store(target, written)
            case ast.AugAssign():
                if isinstance(node.target, ast.Name):
                    self._read([node.target.id], written)
                    self._expression(node.value, written)
                    written.add(node.target.id)
                else:
                    self._expression(node.target, written)
                    self._expression(node.value, written)
            case ast.AnnAssign():
                if node.value is not None:
                    self._expression(node.value, written)
                    self._store(node.target, written)
            case ast.Delete():
                for target in node.targets:
                    self._expression(target, written)
                written -= deleted_names([node])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._expression(node, written)
                written.add(node.name)
            case ast.Import() | ast.ImportFrom():
                written.update(import_name(alias) for alias in node.names)
            case ast.Assert():
                self._expression(node.test, written)
                if node.msg is not None:
                    self._expression(node.msg, set(written))
            case _:
                for child in children(node):
                    self._expression(child, written)

    def _store(self, target: ast.expr, written: set[str]) -> None:
        match target:
            case ast.Name():
                written.add(target.id)
            case ast.Tuple() | ast.List():
                for element in target.elts:
                    self._store(element, written)
            case ast.Starred():
                self._store(target.value, written)
            case _:
                self._expression(target, written)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, written: set[str]) -> set[str]:
        self._expression(node.test if isinstance(node, ast.While) else node.iter, written)
        inside = set(written)
        if not isinstance(node, ast.While):
            self._store(node.target, inside)
        self.block(node.body, inside)
        # The body may run zero times, or end by `break`: only what was written before is sure.
        after = written - deleted_names(node.body)
        self.block(node.orelse, after)
        return after - deleted_names(node.orelse)

    def _with(self, node: ast.With | ast.AsyncWith, written: set[str]) -> set[str] | None:
        before = written - deleted_names(node.body)
        for item in node.items:
            self._expression(item.context_expr, written)
            if item.optional_vars is not None:
                self._store(item.optional_vars, written)
        after = self.block(node.body, written)
        swallows = any(_swallows(item) for item in node.items)
        return _meet(before, after) if swallows else after

    def _try(self, node: ast.Try | ast.TryStar, written: set[str]) -> set[str] | None:
        # An error may strike before the first statement or after the last.
        struck = written - deleted_names(node.body)
        done = self.block(node.body, written)
        if done is not None:
            done = self.block(node.orelse, done)
        handled = [self._handler(handler, struck) for handler in node.handlers]
        after = _meet(done, *handled)
        if not node.finalbody:
            return after
        anywhere = struck - deleted_names([*node.handlers, *node.orelse])
        if self.block(node.finalbody, anywhere) is None or after is None:
            return None
        return self.block(node.finalbody, after)

    def _handler(self, node: ast.ExceptHandler, struck: set[str]) -> set[str] | None:
        written = set(struck)
        if node.type is not None:
            self._expression(node.type, written)
        if node.name is None:
            return self.block(node.body, written)
        after = self.block(node.body, written | {node.name})
        return None if after is None else after - {node.name}

    def _match(self, node: ast.Match, written: set[str]) -> set[str] | None:
        self._expression(node.subject, written)
        paths: list[set[str] | None] = []
        for case in node.cases:
            inside = set(written)
            self._expression(case.pattern, inside)
            inside |= bound_names([case.pattern])
            if case.guard is not None:
                self._expression(case.guard, inside)
            paths.append(self.block(case.body, inside))
        if not any(_is_irrefutable(case) for case in node.cases):
            paths.append(written)
        return _meet(*paths)

    def _expression(self, node: ast.AST, written: set[str]) -> None:
        match node:
            case ast.Name():
                if not isinstance(node.ctx, ast.Store):
                    self._read([node.id], written)
            case ast.NamedExpr():
                self._expression(node.value, written)
                written.add(node.target.id)
            case ast.BoolOp():
                self._expression(node.values[0], written)
                self._unsure(node.values[1:], written)
            case ast.Compare():
                self._expression(node.left, written)
                self._expression(node.comparators[0], written)
                self._unsure(node.comparators[1:], written)
            case ast.IfExp():
                self._expression(node.test, written)
                self._unsure([node.body], written)
                self._unsure([node.orelse], written)
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    if key is not None:
                        self._expression(key, written)
                    self._expression(value, written)
            case _ if isinstance(node, NESTED):
                for part in outer_parts(node):
                    self._expression(part, written)
                self._read(free_reads(node), written)
            case _:
                for child in children(node):
                    self._expression(child, written)

    def _unsure(self, nodes: Iterable[ast.expr], written: set[str]) -> None:
        """Read expressions that may be skipped: what they write is not sure."""
        inside = set(written)
        for node in nodes:
            self._expression(node, inside)
