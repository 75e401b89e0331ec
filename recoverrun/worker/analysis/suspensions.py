"""Suspension points of a loop's body: `yield`, `await` and asynchronous statements.

A trainer may be a generator that yields its losses after each backward. A re-execution ends at a
backward, so a body that is suspended only behind it can be re-executed like any other. A
re-execution that reaches a suspension point is given up. That `yield from` is one shows only when
it is executed: the generator that it delegates to may end without a value, as that of ignite's
engine does wherever nobody has interrupted it.
"""

import ast
from collections.abc import Sequence
from typing import NamedTuple

from recoverrun.worker.analysis.scopes import scope_nodes
from recoverrun.worker.instrumentation import RUNTIME_NAME

KEYWORDS: dict[type[ast.AST], str] = {
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
    ast.Await: "await",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}
COMPREHENSION = "async comprehension"
REPLACED = (ast.Yield, ast.YieldFrom, ast.Await)

REFUSAL = (
    "{filename}:{line}: the loop body waits here ({word}), so that it cannot be executed again on "
    "its own"
)


class Suspension(NamedTuple):
    line: int
    reason: str  # why code behind it cannot be executed again; "" if that shows only then
    always: bool  # code before it cannot be, either: no call can replace it


def suspensions_in(body: Sequence[ast.stmt], filename: str) -> tuple[Suspension, ...]:
    """Return the suspension points of a body, not of functions in it, in the order of lines."""
    points = []
    for node in scope_nodes(body):
        word = _word(node)
        if word:
            line = getattr(node, "lineno", 0)
            surely = not isinstance(node, ast.YieldFrom)
            reason = REFUSAL.format(filename=filename, line=line, word=word) if surely else ""
            points.append(Suspension(line, reason, not isinstance(node, REPLACED)))
    return tuple(sorted(points))


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
        return COMPREHENSION if any(part.is_async for part in node.generators) else ""
    return KEYWORDS.get(type(node), "")


class AbortAtSuspension(ast.NodeTransformer):
    """Replaces each suspension point by a call that ends the re-execution.

    Asynchronous statements (`async for`, `async with`) and comprehensions cannot be replaced.
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _keep

    def _visit_wait(self, node: ast.Yield | ast.YieldFrom | ast.Await) -> ast.AST:
        reason = REFUSAL.format(filename=self.filename, line=node.lineno, word=_word(node))
        self.generic_visit(node)
        function = "drained" if isinstance(node, ast.YieldFrom) else "waits"
        call = ast.parse(f"{RUNTIME_NAME}.{function}({reason!r})", mode="eval").body
        assert isinstance(call, ast.Call), "as it was written"
        for part in ast.walk(call):
            if "lineno" in part._attributes:
                ast.copy_location(part, node)
        if node.value is not None:  # the value may be an expression that trains
            call.args.append(node.value)
        return call

    visit_Yield = visit_YieldFrom = visit_Await = _visit_wait
