"""A call graph over many modules, by names: it finds the names that lead to a `.backward()`.

A name stands for every function and method of that name anywhere; only local variables are known by
their scopes (`scoped_names`). This errs on one side only: a loop may be instrumented that needs no
instrumentation, which costs a call per iteration. A loop that is missed costs the script its
protection, so aliases (`self.fwd = self._body`), partials, callbacks (`fit(step=train_step)`),
closures, decorators and instances that are called are followed too (`call_facts`).
"""

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath

from recoverrun.worker.analysis.bare_names import BACKWARD
from recoverrun.worker.analysis.call_facts import CallFacts, CallSites, ProjectNames
from recoverrun.worker.analysis.reachability import LayeredSet, Reachability
from recoverrun.worker.analysis.scoped_names import OF_ANY, OF_OBJECT, words_of
from recoverrun.worker.analysis.syntax_trees import walk

_NO_WORD = bytes(
    one if chr(one).isalnum() or one in b"_" or one > 127 else 32 for one in range(256)
)


@dataclass(frozen=True, slots=True)
class BackwardNames:
    """The names from which a backward is reachable."""

    names: frozenset[str]
    functions: frozenset[str]  # passing one of these to a call counts as calling it
    module: str = ""  # the one whose local names are asked for
    project: ProjectNames | None = None
    unknown: bool = False  # no loop was found to lead there: one that calls anything may

    def of(self, module: str) -> "BackwardNames":
        """Return the same, to be asked for the local names of `module`."""
        return replace(self, module=module)

    def called_at(self, sites: CallSites) -> bool:
        """True if code with these call sites may run a backward."""
        calls, passed = sites
        return not calls.isdisjoint(self.names) or not passed.isdisjoint(self.functions)

    def calls_in(self, tree: ast.Module) -> "BackwardCalls":
        """Return the calls of a module that may run a backward."""
        sites = CallFacts(tree, self.module, self.project).sites() if self.names else ()
        return BackwardCalls(
            (node for node, _, at in sites if self.called_at(at)), unknown=self.unknown
        )


class BackwardCalls:
    """The calls of a module that may run a backward."""

    def __init__(self, nodes: Iterable[ast.Call], *, unknown: bool = False) -> None:
        self._nodes = {id(node): node for node in nodes}
        self._unknown = unknown

    def may_be_in(self, nodes: Iterable[ast.AST]) -> bool:
        """True if nodes of the module may run a backward, also where only their calls tell so."""
        if not self._unknown:
            return self.reached_by(nodes)
        return any(isinstance(one, ast.Call) for node in nodes for one in walk(node))

    def reached_by(self, nodes: Iterable[ast.AST]) -> bool:
        """True if executing these nodes of the module may run a backward."""
        return bool(self._nodes) and any(
            id(one) in self._nodes for node in nodes for one in walk(node)
        )


class CallGraph:
    """The facts of the modules added so far, and the names that lead to a backward by these."""

    def __init__(
        self, project: ProjectNames | None = None, reach: Reachability | None = None
    ) -> None:
        self._project = project
        self._reach = Reachability() if reach is None else reach
        for name in BACKWARD:
            self._reach.add_reaching(name)
            self._reach.add_called(name)

    def extension(self) -> "CallGraph":
        """Return a graph to which modules can be added without a change to this one."""
        return CallGraph(self._project, self._reach.extension())

    @property
    def called(self) -> LayeredSet:
        return self._reach.called

    def mark_training(self, names: Iterable[str]) -> None:
        """Let these names lead to a backward, though their sources do not show it."""
        for name in names:
            for known in (name, OF_OBJECT + name, OF_ANY + name):
                self._reach.add_function(known)
                self._reach.add_reaching(known)

    def backward_names(self) -> BackwardNames:
        return BackwardNames(
            self._reach.reaching.all(), self._reach.handed.all(), project=self._project
        )

    def relevant_names(self) -> frozenset[str]:
        """Return the names of which a module must contain one to add to `backward_names`."""
        return frozenset(word for name in self._reach.standing_for.all() for word in words_of(name))

    def add(self, tree: ast.Module, module: str = "") -> CallSites:
        """Add a module. Returns the call sites in its loops."""
        return CallFacts(tree, module, self._project).tell(self._reach)


def build_call_graph(
    sources: Iterable[tuple[str, bytes]],
    parse: Callable[[str, bytes], ast.Module | None],
    training: frozenset[str] = frozenset(),
) -> tuple[CallGraph, dict[str, CallSites]]:
    """Return the call graph of many files, and the call sites in loops of those that were parsed.

    `training` are names that lead to a backward outside of these files.

    A name can only come to lead to a backward through a file with a name that leads there, so only
    such files are parsed: the result is that of parsing all of them, at a fraction of the time.
    """
    sources = list(sources)
    graph = CallGraph(project_of(sources))
    graph.mark_training(training)
    waiting = {name: (text, identifiers_in(text)) for name, text in sources}
    parsed: dict[str, CallSites] = {}
    while True:
        relevant_names = graph.relevant_names()
        relevant = [
            name for name, (_, words) in waiting.items() if not words.isdisjoint(relevant_names)
        ]
        if not relevant:
            return graph, parsed
        for name in relevant:
            text, _ = waiting.pop(name)
            tree = parse(name, text)
            if tree is not None:
                parsed[name] = graph.add(tree, name)


def project_of(sources: Iterable[tuple[str, bytes]]) -> ProjectNames:
    """Return what tells the modules and functions of these files from others."""
    modules, functions, others = set[str](), set[bytes](), set[bytes]()
    for path, text in sources:
        modules.update(PurePath(path).with_suffix("").parts)
        functions.update(_FUNCTION.findall(text))
        others.update(_ASSIGNED.findall(text))
    names = frozenset(name.decode(errors="replace") for name in functions - others)
    return ProjectNames(frozenset(modules), names)


_FUNCTION = re.compile(rb"(?m)^(?:async[ \t]+)?def[ \t]+(\w+)")
_ASSIGNED = re.compile(rb"(?m)^(?:class[ \t]+)?(\w+)[ \t]*[:=(]")


def identifiers_in(text: bytes) -> frozenset[str]:
    """Return everything in a source file that may be a name."""
    return frozenset(text.translate(_NO_WORD).decode(errors="replace").split())
