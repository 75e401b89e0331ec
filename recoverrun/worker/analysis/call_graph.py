"""A call graph over many modules, by bare names: it finds the names that lead to a `.backward()`.

A name stands for every function and method of that name anywhere. This errs on one side only: a
loop may be instrumented that needs no instrumentation, which costs a call per iteration. A loop
that is missed costs the script its protection, so aliases (`self.fwd = self._body`), partials,
callbacks (`fit(step=train_step)`) and instances that are called are followed too.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from recoverrun.worker.analysis.reachability import RESULT, LayeredSet, Reachability
from recoverrun.worker.analysis.syntax_trees import children, walk

BACKWARD = frozenset({"backward", "manual_backward"})

# Entering a class means entering one of these; by their bare names they would match everything.
CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__", "__call__"})

IDENTIFIER = re.compile(r"\w+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


CallSites = tuple[set[str], set[str]]
"""Names of what is called, and of what is passed to a call."""


@dataclass(frozen=True, slots=True)
class BackwardNames:
    """The names from which a backward is reachable."""

    names: frozenset[str]
    functions: frozenset[str]  # those defined by `def`: passing one to a call counts as calling it

    def reached_by(self, nodes: Iterable[ast.AST]) -> bool:
        """True if executing these nodes may run a backward."""
        return bool(self.names) and self.called_at(_call_sites(nodes))

    def called_at(self, sites: CallSites) -> bool:
        """True if code with these call sites may run a backward."""
        calls, passed = sites
        return not calls.isdisjoint(self.names) or not passed.isdisjoint(self.functions)


class CallGraph:
    """Calls, aliases and parameters of the modules added so far, and what leads to a backward."""

    def __init__(self) -> None:
        self.aliases: dict[str, set[str]] = {}  # of modules added here, not to graphs below
        self._reach = Reachability()
        for name in BACKWARD:
            self._reach.add_reaching(name)
            self._reach.add_called(name)

    def extension(self) -> "CallGraph":
        """Return a graph to which modules can be added without a change to this one."""
        graph = CallGraph()
        graph._reach = self._reach.extension()
        return graph

    @property
    def called(self) -> LayeredSet:
        return self._reach.called

    @property
    def makers(self) -> LayeredSet:
        """Names of functions that may return a function."""
        return self._reach.makers

    def mark_training(self, names: Iterable[str]) -> None:
        """Let these names lead to a backward, though their sources do not show it."""
        for name in names:
            self._reach.add_function(name)
            self._reach.add_reaching(name)

    def backward_names(self) -> BackwardNames:
        """Return what leads to a backward, as far as the modules added so far tell."""
        names = self._reach.reaching.all()
        return BackwardNames(
            names, frozenset(name for name in names if name in self._reach.functions)
        )

    def relevant_names(self) -> frozenset[str]:
        """Return the names of which a module must contain one to add to `backward_names`."""
        return self._reach.standing_for.all().union(self._reach.receivers())

    def add(self, tree: ast.Module) -> CallSites:
        """Add a module. Returns the call sites in its loops."""
        loop_calls: CallSites = set(), set()
        # A node, the functions around it, the class that it stands directly in, and whether a loop
        # is around. Not recursive: a long sum nests as deep as it has terms.
        todo: list[tuple[ast.AST, tuple[str, ...], str, bool]] = [(tree, (), "", False)]
        while todo:
            node, owners, class_name, loops = todo.pop()
            match node:
                case ast.Name() | ast.Constant():
                    continue
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    owners = (*owners, self._add_function(node, owners, class_name))
                    class_name = ""
                case ast.ClassDef():
                    self._reach.add_maker(node.name)
                    class_name = node.name
                case ast.Lambda():
                    self._make_all(owners)
                case ast.Call():
                    self._add_call(node, owners, loop_calls if loops else None)
                case ast.For() | ast.While() | ast.AsyncFor():
                    loops = True
                case ast.Assign():
                    for target in node.targets:
                        self._alias(target, node.value)
                case ast.Import() | ast.ImportFrom():
                    for alias in node.names:
                        if alias.asname:
                            self._stand(alias.asname, {alias.name})
                case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                    self._alias(node.target, node.value)
                case _:
                    pass
            todo += [(child, owners, class_name, loops) for child in children(node)]
        return loop_calls

    def _add_function(self, node: Function, owners: tuple[str, ...], class_name: str) -> str:
        name = class_name if class_name and node.name in CONSTRUCTORS else node.name
        self._reach.add_function(name)
        self._make_all(owners)
        positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
        defaults = node.args.defaults
        for arg, default in zip(
            positional[len(positional) - len(defaults) :], defaults, strict=True
        ):
            self._stand(arg, references(default))
        if class_name and positional and not is_static(node):
            positional = positional[1:]
        self._reach.add_parameters(name, tuple(positional))
        return name

    def _add_call(
        self, node: ast.Call, owners: tuple[str, ...], loop_calls: CallSites | None
    ) -> None:
        callee = name_of(node.func)
        passed = _passed(node)
        if loop_calls is not None:
            loop_calls[0].add(callee)
            loop_calls[1].update(passed)
        for owner in owners:
            for name in passed:
                self._reach.add_passing(owner, name)
            if callee:
                self._reach.add_call(owner, callee)
        if not callee:
            return
        self._reach.add_called(callee)
        for position, argument in enumerate(node.args):
            for name in references(argument):
                self._reach.add_argument(callee, position, name)
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._stand(keyword.arg, references(keyword.value))

    def _alias(self, target: ast.expr, value: ast.expr) -> None:
        for name in assigned_names(target):
            self._stand(name, references(value))

    def _stand(self, name: str, sources: Iterable[str]) -> None:
        """Let `name` stand for each of `sources`."""
        for source in sources:
            self.aliases.setdefault(name, set()).add(source)
            self._reach.add_alias(name, source)

    def _make_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._reach.add_maker(name)


def name_of(node: ast.AST) -> str:
    """Return the bare name under which an expression is known: `b` for `a.b`, "" for none."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Subscript():
            return name_of(node.value)
        case _:
            return ""


def _call_sites(nodes: Iterable[ast.AST]) -> CallSites:
    calls: set[str] = set()
    passed: set[str] = set()
    for root in nodes:
        for node in walk(root):
            if isinstance(node, ast.Call):
                calls.add(name_of(node.func))
                passed |= _passed(node)
    return calls - {""}, passed


def _passed(node: ast.Call) -> set[str]:
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return {name_of(value) for value in values if isinstance(value, ast.Name | ast.Attribute)}


def assigned_names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from assigned_names(element)
    elif name := name_of(target):
        yield name


def references(value: ast.expr) -> set[str]:
    """Return the names of functions that the value may be, or call.

    The result of a call is written `name()`: it is a function only if `name` makes functions.
    """
    match value:
        case ast.Name() | ast.Attribute():
            return {name_of(value)}
        case ast.Lambda():
            return _call_sites([value.body])[0]
        case ast.Call():
            parts = [*value.args, *(keyword.value for keyword in value.keywords)]
            made = {f"{name_of(value.func)}{RESULT}"}
            # A wrapper returns what it was given: partial(step), compile(step), prepare(step).
            return made.union(*(references(part) - BACKWARD for part in parts))
        case ast.IfExp():
            return references(value.body) | references(value.orelse)
        case ast.BoolOp():
            return set().union(*(references(part) for part in value.values))
        case ast.Dict():
            return set().union(*(references(part) for part in value.values))
        case ast.Tuple() | ast.List() | ast.Set():
            return set().union(*(references(part) for part in value.elts))
        case _:
            return set()


def is_static(node: Function) -> bool:
    return any(name_of(decorator) == "staticmethod" for decorator in node.decorator_list)


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
    graph = CallGraph()
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
                parsed[name] = graph.add(tree)


def identifiers_in(text: bytes) -> frozenset[str]:
    """Return everything in a source file that may be a name."""
    return frozenset(IDENTIFIER.findall(text.decode(errors="replace")))
