"""Facts of one module's text, found in a single pass over its syntax tree and kept without it.

A project may have hundreds of modules, and each question about a loop concerns all of them
(`program_slice`). The facts of a module depend on its text alone, so they are found once.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from recoverrun.worker.analysis.bare_names import (
    CONSTRUCTORS,
    assigned_names,
    is_static,
    name_of,
    references,
)
from recoverrun.worker.analysis.scopes import bound_by
from recoverrun.worker.analysis.syntax_trees import children

REFLECTION = frozenset({"vars", "asdict", "locals", "globals", "eval", "exec"})
"""A call of one of these may read any name."""

ADDING = frozenset({"append", "extend", "appendleft"})
"""A statement that is one of these methods' call reads nothing of what it adds to: a log."""

PLAIN_DECORATORS = frozenset(
    {
        "no_grad",
        "inference_mode",
        "enable_grad",
        "staticmethod",
        "classmethod",
        "contextmanager",
        "record",
        "wraps",
        "compile",
    }
)
"""A function with one of these decorators still runs only where its name is mentioned."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

Place = tuple[int, int]
"""Line and column of a function."""

Handed = tuple[str, int | str, str]
"""A name that is an argument as it is: the callee, its place there or its keyword, the name."""


@dataclass(slots=True)
class CodeFacts:
    """Facts of a function, or of statements, with all that is nested in them."""

    place: Place = (0, 0)
    implicit: bool = False  # it may run at any time, though nobody mentions it
    mentioned: set[str] = field(default_factory=set)  # names that it reads
    handed: set[Handed] = field(default_factory=set)  # read if the callee reads its parameter
    parameters: tuple[str, ...] = ()  # by place, of a method those behind the first
    keywords: frozenset[str] = frozenset()  # and of these alone
    counted: set[str] = field(default_factory=set)  # variables that it adds to
    called: set[str] = field(default_factory=set)  # plain names that it calls
    calls_any: bool = False  # it calls what has no name
    reflects: bool = False  # it may read any name

    def include(self, nested: "CodeFacts") -> None:
        self.mentioned |= nested.mentioned
        self.handed |= nested.handed
        self.counted |= nested.counted
        self.called |= nested.called
        self.calls_any |= nested.calls_any
        self.reflects |= nested.reflects


@dataclass(slots=True)
class ModuleFacts:
    """Facts of a module. Functions are known by their bare names, constructors by their class's."""

    functions: dict[str, list[CodeFacts]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # names of functions, classes and imports
    variables: set[str] = field(default_factory=set)  # of the module, or of its classes
    passed: list[tuple[str, set[str]]] = field(default_factory=list)  # callee, arguments
    aliases: dict[str, set[str]] = field(default_factory=dict)  # what a name may be, or return
    makers: set[str] = field(default_factory=set)  # may return a function
    arguments: set[tuple[str, int, str]] = field(default_factory=set)  # callee, position, name
    parameters: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)  # functions and classes
    imported: dict[str, tuple[int, str]] = field(default_factory=dict)  # name: level, module
    bound: set[str] = field(default_factory=set)  # in any other way


def facts_of(tree: ast.AST) -> ModuleFacts:
    """Return the facts of a module."""
    one = _Pass()
    one.over([tree], CodeFacts())
    return one.found


def facts_of_code(nodes: Iterable[ast.AST]) -> CodeFacts:
    """Return the facts of statements."""
    facts = CodeFacts()
    _Pass().over(nodes, facts)
    return facts


class _Pass:
    """Goes once over a tree; not recursively, as a long sum nests as deep as it has terms."""

    def __init__(self) -> None:
        self.found = ModuleFacts()
        self._yields: set[int] = set()  # functions in which a `yield` stands, by identity
        # `x` of statements such as `x.append(1)` and `x["loss"] = 1`, by identity
        self._added_to: set[int] = set()
        self._handed: set[int] = set()  # `x` of calls such as `f(x)`, by identity

    def over(self, nodes: Iterable[ast.AST], facts: CodeFacts) -> None:
        nested: list[tuple[CodeFacts, CodeFacts, Function]] = []  # each behind the one around it
        # A node, the facts of the function around it, the names of all functions around it, and the
        # class that it stands directly in.
        todo: list[tuple[ast.AST, CodeFacts, tuple[str, ...], str]] = [
            (node, facts, (), "") for node in nodes
        ]
        while todo:
            node, around, owners, class_name = todo.pop()
            match node:
                case ast.Attribute() if id(node) not in self._added_to:
                    _attribute(node, around)
                case ast.Call():
                    self._call(node, around)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    inner = CodeFacts((node.lineno, node.col_offset))
                    nested.append((inner, around, node))
                    owners = (*owners, self._function(node, inner, owners, class_name))
                    around, class_name = inner, ""
                case ast.ClassDef():
                    self.found.known.add(node.name)
                    self.found.defined.add(node.name)
                    self.found.makers.add(node.name)
                    self.found.functions.setdefault(node.name, [])
                    class_name = node.name
                case ast.Lambda():
                    self.found.makers.update(owners)
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method, value=held))):
                    if method in ADDING:
                        self._added_to.add(id(_container(held)))
                case ast.Subscript(ctx=ast.Store()) if _container(node) is not node:
                    self._added_to.add(id(_container(node)))
                case ast.Yield() | ast.YieldFrom():
                    self._yields.add(id(around))
                case _:
                    self._statement(node, around)
            for child in children(node):
                match child:
                    case ast.Name() if id(child) in self._added_to:
                        around.counted.add(child.id)
                    case ast.Name() if id(child) in self._handed:
                        around.reflects |= child.id in REFLECTION
                    case ast.Name():  # half of all nodes
                        _name(child, around)
                        if not isinstance(child.ctx, ast.Load):
                            self.found.bound.add(child.id)
                            if around is facts:
                                self.found.variables.add(child.id)
                    case ast.Constant():
                        _constant(child, around)
                    case _:
                        todo.append((child, around, owners, class_name))
        for inner, around, function in reversed(nested):
            if id(inner) in self._yields:
                self._yields.add(id(around))
            inner.implicit = id(inner) in self._yields or _is_implicit(function)
            around.include(inner)

    def _function(
        self, node: Function, facts: CodeFacts, owners: tuple[str, ...], class_name: str
    ) -> str:
        """Note a function. Returns the name that calling it goes by."""
        found = self.found
        found.functions.setdefault(node.name, []).append(facts)
        found.known.add(node.name)
        found.defined.add(node.name)
        found.makers.update(owners)
        name = node.name
        if class_name and node.name in CONSTRUCTORS:
            name = class_name
            found.functions.setdefault(name, []).append(facts)
        names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
        defaults = node.args.defaults
        for arg, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            self._stand(arg, references(default))
        bound = bool(class_name and names and not is_static(node))
        facts.parameters = tuple(names[1:] if bound else names)
        facts.keywords = frozenset(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs))
        found.parameters.add((name, facts.parameters))
        return name

    def _call(self, node: ast.Call, facts: CodeFacts) -> None:
        callee, func = name_of(node.func), node.func
        if isinstance(func, ast.Name):
            facts.called.add(func.id)
        elif not isinstance(func, ast.Attribute):  # an attribute's name is found, or a library's
            facts.calls_any = True
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        names = {name_of(value) for value in values} - {""}
        if names:
            self.found.passed.append((callee, names))
        if not callee:
            return
        if isinstance(func, ast.Name):  # a method may be a library's
            self._hand(node, callee, facts)
        for position, argument in enumerate(node.args):
            for name in references(argument):
                self.found.arguments.add((callee, position, name))
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._stand(keyword.arg, references(keyword.value))

    def _hand(self, node: ast.Call, callee: str, facts: CodeFacts) -> None:
        """Note the names that this call hands on as they are; what follows a `*` has no place."""
        placed: list[tuple[int | str | None, ast.expr]] = []
        for position, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred):
                break
            placed.append((position, argument))
        placed += [(keyword.arg, keyword.value) for keyword in node.keywords]
        for place, argument in placed:
            if place is not None and isinstance(argument, ast.Name):
                facts.handed.add((callee, place, argument.id))
                self._handed.add(id(argument))

    def _statement(self, node: ast.AST, facts: CodeFacts) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    for name in assigned_names(target):
                        self._stand(name, references(node.value))
            case ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                for name in assigned_names(node.target):
                    self._stand(name, references(node.value))
            case ast.AugAssign(target=ast.Name(id=name)):
                facts.counted.add(name)
            case ast.Import() | ast.ImportFrom():
                self.found.known |= bound_by(node)
                self._import(node)
                for alias in node.names:
                    if alias.asname:
                        self._stand(alias.asname, {alias.name})
            case ast.Global():
                self.found.variables.update(node.names)
            case ast.arg():
                self.found.bound.add(node.arg)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                self.found.bound.add(node.name or "")
            case ast.MatchMapping():
                self.found.bound.add(node.rest or "")
            case ast.Delete():
                facts.mentioned.update(name_of(target) for target in node.targets)
            case ast.MatchClass():
                facts.mentioned.update(node.kwd_attrs)
            case _:
                pass

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Note the modules that names are taken from as they are."""
        if isinstance(node, ast.Import):
            self.found.bound |= bound_by(node)
            return
        source = node.level, node.module or ""
        for alias in node.names:
            if alias.asname or self.found.imported.get(alias.name, source) != source:
                self.found.bound.add(alias.asname or alias.name)
            else:
                self.found.imported[alias.name] = source

    def _stand(self, name: str, sources: Iterable[str]) -> None:
        """Let `name` stand for each of `sources`."""
        self.found.aliases.setdefault(name, set()).update(sources)


def _container(node: ast.AST) -> ast.AST:
    """`x` of `x["loss"]`, which is what a log is by name; else the expression itself."""
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=str()) | ast.JoinedStr()):
            return _container(value)
        case _:
            return node


def _name(node: ast.Name, facts: CodeFacts) -> None:
    if isinstance(node.ctx, ast.Load):
        facts.mentioned.add(node.id)
    facts.reflects |= node.id in REFLECTION


def _constant(node: ast.Constant, facts: CodeFacts) -> None:
    if isinstance(node.value, str) and node.value.isidentifier():
        facts.mentioned.add(node.value)


def _attribute(node: ast.Attribute, facts: CodeFacts) -> None:
    if isinstance(node.ctx, ast.Load):
        facts.mentioned.add(node.attr)
    facts.reflects |= node.attr == "__dict__"


def _is_implicit(node: Function) -> bool:
    """True if a function may run though nobody mentions it, generators apart."""
    magic = node.name.startswith("__") and node.name != "__init__"
    decorators = {
        name_of(inner.func if isinstance(inner, ast.Call) else inner)
        for inner in node.decorator_list
    }
    return magic or bool(decorators - PLAIN_DECORATORS) or node.name == "forward"
