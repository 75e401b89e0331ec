"""Names of the whole script that values of ranks may come to.

    for epoch in range(3):
        for x in batches(rows, epoch * rank):

In epoch 0 no comparison of arguments shows that they are each rank's own; the text does.
"""

import ast
from collections.abc import Iterable, Mapping

from recoverrun.worker.analysis.bare_names import name_of
from recoverrun.worker.analysis.rank_flow import (
    MOST_FUNCTIONS,
    Flow,
    Function,
    ProjectFunctions,
    called_so,
    find_loop,
    flows_up_to,
    scoped,
    spread_of,
)
from recoverrun.worker.analysis.syntax_trees import children
from recoverrun.worker.instrumentation import Loop

HARDWARE = ("device", "cuda")
"""A variable with such a word in its name tells where a rank computes, and not what."""


class Spread:
    """Names of the whole script that values may come to which variables where `loops` are, modules
    or attributes call as one of `differing`. `modules` are as for `reaches`.
    """

    def __init__(
        self, loops: Iterable[Loop], differing: Iterable[str], modules: Mapping[str, ast.Module]
    ) -> None:
        self._modules = modules
        self._project = project = ProjectFunctions()
        for tree in modules.values():
            project.add(tree)
        functions = {id(one): one for some in project.functions.values() for one in some}
        self._everywhere = len(functions) > MOST_FUNCTIONS
        if self._everywhere:
            return
        found = [find_loop(loop, modules) for loop in loops]
        known = called_so(project, [one[0] for one in found if one is not None], differing)
        regions: list[tuple[Function | None, list[ast.stmt]]] = [
            *((None, tree.body) for tree in modules.values()),
            *((one, one.body) for one in functions.values()),
        ]
        flows = flows_up_to(project, regions, ast.Pass())
        self._names = spread_of(list(map(_of_data, flows)), known)

    def enters(self, filename: str, line: int) -> bool:
        """True if a statement at this line may read one of these names."""
        if self._everywhere:
            return True
        return any(
            self._names & self._project.read_by(scope, _own_parts(node))
            for scope, node in scoped(self._modules.get(filename))
            if isinstance(node, ast.stmt) and _is_at(node, line)
        )

    def reaches(self, loop: Loop, names: Iterable[str]) -> bool:
        """True if one of these is a variable where `loop` is, or an attribute, called as one of
        `names`.
        """
        found = find_loop(loop, self._modules)
        if self._everywhere or found is None:
            return True
        return not self._names.isdisjoint(called_so(self._project, [found[0]], names))

    def gives(self, function: str) -> bool:
        """True if a call of `function` may be given one of these names, or none is found that calls
        it so.
        """
        if self._everywhere:
            return True
        calls = [
            (scope, node)
            for tree in self._modules.values()
            for scope, node in scoped(tree)
            if isinstance(node, ast.Call) and name_of(node.func) == function
        ]
        return not calls or any(
            self._names & self._project.read_by(scope, _arguments(call)) for scope, call in calls
        )


def _of_data(flow: Flow) -> Flow:
    kept = {one for one in flow.writes if not any(word in one[1].lower() for word in HARDWARE)}
    return Flow(flow.reads, frozenset(kept))


def _arguments(call: ast.Call) -> list[ast.AST]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _own_parts(node: ast.stmt) -> list[ast.AST]:
    """The statement, without statements within it."""
    parts = [one for one in children(node) if not isinstance(one, ast.stmt)]
    return [node] if len(parts) == len(children(node)) else parts


def _is_at(node: ast.stmt, line: int) -> bool:
    """True if this statement, and none within it, has code at the line."""
    here = node.lineno <= line <= (node.end_lineno or node.lineno)
    return here and not any(isinstance(n, ast.stmt) and _is_at(n, line) for n in children(node))
