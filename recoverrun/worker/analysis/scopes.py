"""Scopes: which names the statements of one scope bind, and which names nested scopes read.

Functions, lambdas, classes and comprehensions open a nested scope. Some of their parts (decorators,
defaults, bases, the first iterable) are evaluated in the scope around them.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence

from recoverrun.worker.analysis.syntax_trees import children

COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
NESTED = (*FUNCTION, ast.ClassDef, *COMPREHENSION)


def scope_nodes(roots: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that belong to the scope of `roots`.

    A nested function, class or comprehension is yielded, and what of it is evaluated outside of it
    (decorators, defaults, bases, the first iterable), but not what is inside.
    """
    todo = list(roots)
    while todo:
        node = todo.pop()
        yield node
        todo.extend(outer_parts(node) if isinstance(node, NESTED) else children(node))


def outer_parts(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a nested scope that are evaluated in the scope around it, in order."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            annotations = [arg.annotation for arg in all_parameters(node.args)] + [node.returns]
            parts = [*node.decorator_list, *_defaults(node.args), *annotations]
            return [part for part in parts if part is not None]
        case ast.Lambda():
            return _defaults(node.args)
        case ast.ClassDef():
            keywords = [keyword.value for keyword in node.keywords]
            return [*node.decorator_list, *node.bases, *keywords]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return [node.generators[0].iter]
        case _:
            return []


def inner_parts(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a nested scope that are evaluated within it."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return list(node.body)
        case ast.Lambda():
            return [node.body]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            return [node.elt, *_generator_parts(node.generators)]
        case ast.DictComp():
            return [node.key, node.value, *_generator_parts(node.generators)]
        case _:
            return []


def bound_names(roots: Iterable[ast.AST]) -> set[str]:
    """Return the names that executing `roots` may bind or delete in their own scope.

    Those that a nested function binds from within, by `nonlocal` or `global`, are among them.
    """
    nodes = list(scope_nodes(roots))
    return scope_names(nodes).union(*(_writes_outside(node) for node in nodes))


def scope_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the nodes of one scope bind or delete themselves."""
    names: set[str] = set()
    for node in nodes:
        names |= bound_by(node)
        if isinstance(node, COMPREHENSION):
            names |= _walrus_names(node)
    return names


def deleted_names(roots: Iterable[ast.AST]) -> set[str]:
    """Return the names that executing `roots` may leave unbound."""
    names: set[str] = set()
    for node in scope_nodes(roots):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def free_reads(node: ast.AST) -> set[str]:
    """Return the names of the scope around it that the inside of a nested scope reads."""
    inside = list(scope_nodes(inner_parts(node)))
    reads = {n.id for n in inside if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store)}
    reads |= {
        n.target.id
        for n in inside
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    for nested in inside:
        if isinstance(nested, NESTED):
            reads |= free_reads(nested)
    # The methods of a class do not see its names, and its own statements see those around it
    # until they bind them.
    return reads if isinstance(node, ast.ClassDef) else reads - local_names(node)


def target_names(target: ast.AST) -> frozenset[str]:
    """Return the names that an assignment to `target` binds."""
    return frozenset(bound_names([target]))


def all_parameters(arguments: ast.arguments) -> list[ast.arg]:
    """Return the parameters of a function, those behind `*` and `**` last."""
    ends = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *ends]


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(part for part in arguments.kw_defaults if part is not None)]


def _generator_parts(generators: Sequence[ast.comprehension]) -> list[ast.AST]:
    parts: list[ast.AST] = [node for each in generators for node in (each.target, *each.ifs)]
    return [*parts, *(each.iter for each in generators[1:])]


def import_name(alias: ast.alias) -> str:
    """Return the name that an import binds: `a` for `import a.b`."""
    return alias.asname or alias.name.split(".")[0]


def bound_by(node: ast.AST) -> set[str]:
    """Return the names that this node alone, not those in it, binds or deletes."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return {node.id}
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {import_name(alias) for alias in node.names}
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return {node.name} if node.name else set()
        case ast.MatchMapping():
            return {node.rest} if node.rest else set()
        case _:
            return set()


def _walrus_names(comprehension: ast.AST) -> set[str]:
    """`:=` in a comprehension binds in the function around it, through any number of them."""
    names: set[str] = set()
    for node in scope_nodes(inner_parts(comprehension)):
        if isinstance(node, ast.NamedExpr):
            names.add(node.target.id)
        elif isinstance(node, COMPREHENSION):
            names |= _walrus_names(node)
    return names


def declared_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that the nodes of one scope declare to be those of another."""
    return {
        name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
    }


def local_names(node: ast.AST) -> set[str]:
    """Return the names of a nested function or comprehension that are its own."""
    inside = list(scope_nodes(inner_parts(node)))
    if isinstance(node, COMPREHENSION):
        return {name for each in node.generators for name in target_names(each.target)}
    if isinstance(node, FUNCTION):
        names = {arg.arg for arg in all_parameters(node.args)} | scope_names(inside)
        return names - declared_names(inside)
    return set()  # The names of a class are nobody else's, not even its methods'.


def _writes_outside(node: ast.AST) -> set[str]:
    """Return the names that a nested function or class binds in scopes around it."""
    if not isinstance(node, (*FUNCTION, ast.ClassDef)):
        return set()
    inside = list(scope_nodes(inner_parts(node)))
    deeper = set().union(*(_writes_outside(nested) for nested in inside)) - local_names(node)
    return scope_names(inside) & declared_names(inside) | deeper
