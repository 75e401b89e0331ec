"""Which names lead to a `.backward()`: a call graph by bare names, over many modules.

A name stands for every function and method that is called so anywhere. That errs on one side only:
a loop is instrumented that would not have needed it, which costs a call per iteration. Missing a
loop would cost the protection of the script, so aliases (`self.fwd = self._body`), partials,
callbacks (`fit(step=train_step)`) and instances that are called are followed too.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

BACKWARD = frozenset({"backward", "manual_backward"})

# Entering a class means entering one of these; by their bare names they would match everything.
CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__", "__call__"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Hot:
    """The names from which a backward is reachable."""

    names: frozenset[str]
    functions: frozenset[str]  # those defined by `def`: passing one to a call counts as calling it

    def reached_by(self, nodes: Iterable[ast.AST]) -> bool:
        """Say whether executing these nodes may run a backward."""
        calls, passed = _mentions(nodes)
        return not calls.isdisjoint(self.names) or not passed.isdisjoint(self.functions)


@dataclass(slots=True)
class CallGraph:
    """Calls, aliases and parameters of the modules added so far."""

    calls: dict[str, set[str]] = field(default_factory=dict)  # function -> names it calls
    passed: dict[str, set[str]] = field(default_factory=dict)  # function -> names it hands on
    called: set[str] = field(default_factory=lambda: set(BACKWARD))
    makers: set[str] = field(default_factory=set)  # calling one of these may return a function
    aliases: dict[str, set[str]] = field(default_factory=dict)
    parameters: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    arguments: set[tuple[str, int, str]] = field(default_factory=set)  # callee, position, name

    def add(self, tree: ast.Module) -> None:
        """Add a module."""
        self._add(tree)

    def train(self, names: Iterable[str]) -> None:
        """Let these names lead to a backward, by ways that cannot be seen."""
        for name in names:
            self.calls.setdefault(name, set()).update(BACKWARD)

    def copy(self) -> "CallGraph":
        """Return an independent copy."""
        return CallGraph(
            calls={name: set(names) for name, names in self.calls.items()},
            passed={name: set(names) for name, names in self.passed.items()},
            called=set(self.called),
            makers=set(self.makers),
            aliases={name: set(names) for name, names in self.aliases.items()},
            parameters={name: set(names) for name, names in self.parameters.items()},
            arguments=set(self.arguments),
        )

    def hot(self) -> Hot:
        """Return what leads to a backward, as far as the modules added so far tell."""
        aliases = self._all_aliases()
        hot = set(BACKWARD)
        while True:
            leading = self._leading(aliases, hot)
            functions = hot & self.calls.keys()
            found = {
                name
                for name, calls in self.calls.items()
                if name not in hot and (calls & hot or self.passed.get(name, set()) & functions)
            } | {name for name in leading - hot if name in self.called}
            if not found:
                return Hot(frozenset(hot), frozenset(functions))
            hot |= found

    def wanted(self, hot: Hot) -> frozenset[str]:
        """Return the names that a module must contain to be able to add to `hot`."""
        receivers = {callee for callee, _, name in self.arguments if name in hot.functions}
        return hot.names | receivers | self._leading(self._all_aliases(), set(hot.names))

    def _all_aliases(self) -> dict[str, set[str]]:
        aliases = {name: set(sources) for name, sources in self.aliases.items()}
        for callee, position, name in self.arguments:
            for parameters in self.parameters.get(callee, ()):
                if position < len(parameters):
                    aliases.setdefault(parameters[position], set()).add(name)
        return aliases

    def _leading(self, aliases: dict[str, set[str]], hot: set[str]) -> set[str]:
        """Return `hot`, and all names that stand for one of these, called or only handed on."""
        makers = set(self.makers)
        while more := {name for name, sources in aliases.items() if sources & makers} - makers:
            makers |= more
        leading = set(hot)
        while True:
            given = leading | {f"{name}()" for name in makers & leading}
            found = {name for name, sources in aliases.items() if sources & given} - leading
            if not found:
                return leading
            leading |= found

    def _add(self, tree: ast.Module) -> None:
        # A node, the functions around it, and the class that it stands directly in. Not recursive:
        # a long sum nests as deep as it has terms.
        todo: list[tuple[ast.AST, tuple[str, ...], str]] = [(tree, (), "")]
        while todo:
            node, owners, class_name = todo.pop()
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    owners = (*owners, self._add_function(node, owners, class_name))
                    class_name = ""
                case ast.ClassDef():
                    self.makers.add(node.name)
                    class_name = node.name
                case ast.Lambda():
                    self.makers.update(owners)
                case ast.Call():
                    self._add_call(node, owners)
                case ast.Assign():
                    for target in node.targets:
                        self._alias(target, node.value)
                case ast.Import() | ast.ImportFrom():
                    for one in node.names:
                        if one.asname:
                            self.aliases.setdefault(one.asname, set()).add(one.name)
                case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                    self._alias(node.target, node.value)
                case _:
                    pass
            todo.extend((child, owners, class_name) for child in ast.iter_child_nodes(node))

    def _add_function(self, node: Function, owners: tuple[str, ...], class_name: str) -> str:
        name = class_name if class_name and node.name in CONSTRUCTORS else node.name
        self.calls.setdefault(name, set())
        self.makers.update(owners)
        positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
        defaults = node.args.defaults
        for arg, default in zip(
            positional[len(positional) - len(defaults) :], defaults, strict=True
        ):
            self.aliases.setdefault(arg, set()).update(_references(default))
        if class_name and positional and not _is_static(node):
            positional = positional[1:]
        self.parameters.setdefault(name, set()).add(tuple(positional))
        return name

    def _add_call(self, node: ast.Call, owners: tuple[str, ...]) -> None:
        callee = name_of(node.func)
        passed = _passed(node)
        for owner in owners:
            self.passed.setdefault(owner, set()).update(passed)
            if callee:
                self.calls.setdefault(owner, set()).add(callee)
        if not callee:
            return
        self.called.add(callee)
        for position, argument in enumerate(node.args):
            for name in _references(argument):
                self.arguments.add((callee, position, name))
        for keyword in node.keywords:
            if keyword.arg is not None:
                self.aliases.setdefault(keyword.arg, set()).update(_references(keyword.value))

    def _alias(self, target: ast.expr, value: ast.expr) -> None:
        for name in _target_names(target):
            self.aliases.setdefault(name, set()).update(_references(value))


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


def _mentions(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    calls: set[str] = set()
    passed: set[str] = set()
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Call):
                calls.add(name_of(node.func))
                passed |= _passed(node)
    return calls - {""}, passed


def _passed(node: ast.Call) -> set[str]:
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return {name_of(value) for value in values if isinstance(value, ast.Name | ast.Attribute)}


def _target_names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _target_names(element)
    elif name := name_of(target):
        yield name


def _references(value: ast.expr) -> set[str]:
    """Return the names of functions that the value may be, or call.

    The result of a call is written `name()`: it is a function only if `name` makes functions.
    """
    match value:
        case ast.Name() | ast.Attribute():
            return {name_of(value)}
        case ast.Lambda():
            return _mentions([value.body])[0]
        case ast.Call():
            parts = [*value.args, *(keyword.value for keyword in value.keywords)]
            made = {f"{name_of(value.func)}()"}
            # A wrapper returns what it was given: partial(step), compile(step), prepare(step).
            return made.union(*(_references(part) - BACKWARD for part in parts))
        case ast.IfExp():
            return _references(value.body) | _references(value.orelse)
        case ast.BoolOp():
            return set().union(*(_references(part) for part in value.values))
        case ast.Dict():
            return set().union(*(_references(part) for part in value.values))
        case ast.Tuple() | ast.List() | ast.Set():
            return set().union(*(_references(part) for part in value.elts))
        case _:
            return set()


def _is_static(node: Function) -> bool:
    return any(name_of(decorator) == "staticmethod" for decorator in node.decorator_list)


def scan(
    sources: Iterable[tuple[str, bytes]],
    parse: Callable[[str, bytes], ast.Module | None],
    training: frozenset[str] = frozenset(),
) -> tuple[CallGraph, frozenset[str]]:
    """Return the call graph of many files, and the names of those that were parsed.

    `training` are names that lead to a backward outside of these files.

    A name can only become hot through a file that contains a hot name, so that only such files
    are parsed: the result is that of parsing all of them, at a fraction of the time.
    """
    graph = CallGraph()
    graph.train(training)
    waiting = dict(sources)
    parsed: set[str] = set()
    while True:
        wanted = [name.encode() for name in sorted(graph.wanted(graph.hot()))]
        found = [name for name, text in waiting.items() if any(word in text for word in wanted)]
        if not found:
            return graph, frozenset(parsed)
        for name in found:
            tree = parse(name, waiting.pop(name))
            if tree is not None:
                parsed.add(name)
                graph.add(tree)
