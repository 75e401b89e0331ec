"""Where a loop's body hands control to whoever asked for the next item, and comes back later.

A trainer may be a generator that yields its losses after each backward. What is executed again ends
at a backward, so that a body which waits only behind it can be executed like any other; where code
that is executed again comes to such a place, it is given up.
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
    reason: str  # why what comes behind it cannot be executed again
    always: bool  # nor what comes before it: no call can stand in its place


def suspensions_in(body: Sequence[ast.stmt], filename: str) -> tuple[Suspension, ...]:
    """Those of a body itself, in the order of their lines."""
    found = []
    for node in scope_nodes(body):
        word = _word(node)
        if word:
            line = getattr(node, "lineno", 0)
            reason = REFUSAL.format(filename=filename, line=line, word=word)
            found.append(Suspension(line, reason, not isinstance(node, REPLACED)))
    return tuple(sorted(found))


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
        return COMPREHENSION if any(part.is_async for part in node.generators) else ""
    return KEYWORDS.get(type(node), "")


class AbortAtSuspension(ast.NodeTransformer):
    """Puts an end to the execution where the script would wait. Statements that wait by themselves
    (`async for`, `async with`) and comprehensions have no place in code that is executed again.
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _keep

    def _visit_wait(self, node: ast.Yield | ast.YieldFrom | ast.Await) -> ast.AST:
        reason = REFUSAL.format(filename=self.filename, line=node.lineno, word=_word(node))
        self.generic_visit(node)
        call = ast.parse(f"{RUNTIME_NAME}.waits({reason!r})", mode="eval").body
        assert isinstance(call, ast.Call), "as it was written"
        for part in ast.walk(call):
            if "lineno" in part._attributes:
                ast.copy_location(part, node)
        if node.value is not None:  # what is handed over may be what trains
            call.args.append(node.value)
        return call

    visit_Yield = visit_YieldFrom = visit_Await = _visit_wait
