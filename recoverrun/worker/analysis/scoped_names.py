"""Names of a module with the scopes that they belong to, so that locals of one name are told apart.

Known by their scope are names that are local to a function, a lambda or a comprehension: its
parameters, and what it assigns. Functions nested in it read them as Python does. All other names
are known by themselves, wherever they stand: attributes, names of modules and classes, what is
declared `global`, and functions, classes and imports, also where these are local.

Attributes are known by a dot and their name if they are those of `self`, which is no module: a
method `main` is no function `main`. Those of anything else may be a module's functions, too.

This errs on one side only. No other scope can bind or read a local name, but for code that reads
it as text (`locals()`, `exec`), so what holds for one `x` says nothing about another. What flows
from one to the other by calls, closures and results is told as such (`call_facts`).
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from recoverrun.worker.analysis.bare_names import CONSTRUCTORS, RESULT, Function, is_static
from recoverrun.worker.analysis.scopes import (
    COMPREHENSION,
    all_parameters,
    bound_by,
    import_name,
    inner_parts,
    outer_parts,
)
from recoverrun.worker.analysis.syntax_trees import children

SLOT = "\0"
"""Between a name and a place or keyword: what is given there to whatever goes by the name."""

OF_OBJECT = "."
"""Before the name of a method, or of an attribute that is surely one of an instance or a class."""

OF_ANY = "~"
"""Before the name of an attribute that may also be one of a module."""

AT = "@"
"""Between a name and the place of its scope."""


@dataclass(eq=False, slots=True)
class Scope:
    """A function, lambda, comprehension, class or module, and the names that it binds."""

    around: "Scope | None"  # the scope in which names are looked up that are not found here
    place: str  # "" of a module or a class, which have no names of their own
    names: set[str] = field(default_factory=set)  # local ones, but for these:
    shared: set[str] = field(default_factory=set)  # known by themselves
    outer: set[str] = field(default_factory=set)  # declared `nonlocal`
    imported: dict[str, str] = field(default_factory=dict)  # and the module, "" of one beside this
    defined: set[str] = field(default_factory=set)  # functions
    assigned: set[str] = field(default_factory=set)  # in any way but by import or `def`
    of_class: bool = False
    instance: str = ""  # the parameter of a method that is its instance, or its class

    def bind(self, name: str) -> None:
        (self.names if self.place else self.shared).add(name)

    def home(self, name: str) -> "Scope | None":
        """Return the scope that binds a name which stands in this scope, None if none does."""
        scope: Scope | None = self
        while scope is not None:
            if name not in scope.outer and (name in scope.shared or name in scope.names):
                return scope
            scope = scope.around
        return None

    def known(self, name: str) -> str:
        """Return what a name is known by that stands in this scope."""
        scope = self.home(name)
        if scope is None or name in scope.shared:
            return OF_OBJECT + name if scope is not None and scope.of_class else name
        return f"{name}{AT}{scope.place}"

    def is_instance(self, name: str) -> bool:
        """True if a name is that of the instance (or class) whose method this is, or is within."""
        home = self.home(name)
        return home is not None and name == home.instance and name not in home.assigned


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that matters of what is around a node."""

    scope: Scope
    function_scope: Scope  # the same, but for comprehensions
    owners: tuple[str, ...] = ()  # what the functions around are known by, the outer before inner
    class_around: ast.ClassDef | None = None
    class_name: str = ""  # what that is known by
    in_class: bool = False  # directly in its body
    in_loop: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """A node, what is around it, and what is around that which is inside."""

    node: ast.AST
    around: Surroundings
    inside: Surroundings


def visits(tree: ast.Module, module: str) -> list[Visit]:
    """Return the nodes of a module that call, bind, define or return something.

    Not recursive: a long sum nests as deep as it has terms.
    """
    scope = Scope(None, "")
    found: list[Visit] = []
    todo: list[tuple[ast.AST, Surroundings]] = [(tree, Surroundings(scope, scope))]
    while todo:
        node, around = todo.pop()
        kind = type(node)
        if isinstance(node, ast.Name):  # half of all nodes
            if not isinstance(node.ctx, ast.Load):
                around.scope.bind(node.id)
                around.scope.assigned.add(node.id)
            continue
        if kind in _OPENING:
            inside = _opened(node, around, module)
            found.append(Visit(node, around, inside))
            todo += [(part, inside) for part in reversed(inner_parts(node))]
            todo += [(part, around) for part in outer_parts(node)]
            continue
        if kind in _LOOPS and not around.in_loop:
            around = replace(around, in_loop=True)
        if kind in _BINDING:
            _bind(node, around)
        if kind in _TOLD:
            found.append(Visit(node, around, around))
        if isinstance(node, ast.NamedExpr):
            todo.append((node.value, around))
            continue
        # In order: `global` comes before what it is about.
        todo += [(child, around) for child in reversed(children(node))]
    return found


_LOOPS = frozenset({ast.For, ast.AsyncFor, ast.While})
_OPENING = frozenset(
    {ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *COMPREHENSION}
)
_BINDING = frozenset(
    {
        ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.NamedExpr, ast.ExceptHandler,
        ast.MatchAs, ast.MatchStar, ast.MatchMapping,
    }
)  # fmt: skip
_TOLD = frozenset(
    {
        ast.Call, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.withitem, ast.Return,
        ast.Yield, ast.YieldFrom, ast.Import, ast.ImportFrom,
    }
)  # fmt: skip


def _bind(node: ast.AST, around: Surroundings) -> None:
    scope = around.scope
    match node:
        case ast.Import() | ast.ImportFrom():
            source = "" if getattr(node, "level", 0) else getattr(node, "module", None)
            for alias in node.names:
                scope.bind(import_name(alias))
                scope.imported[import_name(alias)] = alias.name if source is None else source
        case ast.Global():
            scope.shared.update(node.names)
        case ast.Nonlocal():
            scope.outer.update(node.names)
        case ast.NamedExpr():  # binds in the function around, through any number of comprehensions
            around.function_scope.bind(node.target.id)
            around.function_scope.assigned.add(node.target.id)
        case _:
            for name in bound_by(node):
                scope.bind(name)
                scope.assigned.add(name)


def _opened(node: ast.AST, around: Surroundings, module: str) -> Surroundings:
    """Return the surroundings of what is inside of a function, class or comprehension."""
    assert isinstance(node, ast.expr | ast.stmt), f"{node} opens no scope"
    place = f"{module}:{node.lineno}:{node.col_offset}"
    if isinstance(node, ast.ClassDef):
        around.scope.bind(node.name)
        around.scope.assigned.add(node.name)
        scope = Scope(_readable(around), "", of_class=True)
        return replace(
            around,
            scope=scope,
            function_scope=scope,
            class_around=node,
            class_name=around.scope.known(node.name),
            in_class=True,
        )
    scope = Scope(_readable(around), place)
    if isinstance(node, COMPREHENSION):
        return replace(around, scope=scope)
    assert isinstance(node, Function | ast.Lambda), f"{node} opens no scope"
    scope.names.update(arg.arg for arg in all_parameters(node.args))
    if isinstance(node, Function) and around.in_class and not is_static(node):
        positional = [*node.args.posonlyargs, *node.args.args]
        scope.instance = positional[0].arg if positional else ""
    scope.assigned.update(scope.names - {scope.instance})
    if isinstance(node, ast.Lambda):
        owners = (*around.owners, lambda_name(place))
    else:
        around.scope.bind(node.name)
        around.scope.defined.add(node.name)
        owners = (*around.owners, function_name(node, around))
    return replace(around, scope=scope, function_scope=scope, owners=owners, in_class=False)


def _readable(around: Surroundings) -> Scope | None:
    """Return the scope that is read from within: a class's own names are not.

    A comprehension that stands in a class reads as a method does.
    """
    return around.scope.around if around.in_class and not around.scope.place else around.scope


def lambda_name(place: str) -> str:
    return f"lambda{AT}{place}"


def function_name(node: Function, around: Surroundings) -> str:
    """Return what calling a function goes by: a constructor goes by its class, `__call__` by the
    instances of its class.
    """
    if around.in_class and node.name in CONSTRUCTORS:
        return around.class_name + (RESULT if node.name == "__call__" else "")
    return around.scope.known(node.name)


def words_of(known: str) -> Iterator[str]:
    """Yield the name that a file must contain to say something of what is known by `known`."""
    name = known.partition(SLOT)[0]
    while name.endswith(RESULT):
        name = name.removesuffix(RESULT)
    if AT not in name:
        yield name.lstrip(OF_OBJECT + OF_ANY)
