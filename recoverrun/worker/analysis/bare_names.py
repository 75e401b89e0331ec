"""Bare names: what an expression goes by, and what it may stand for, wherever it stands."""

import ast
from collections.abc import Iterator

from recoverrun.worker.analysis.syntax_trees import walk

BACKWARD = frozenset({"backward", "manual_backward"})

CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__", "__call__"})
"""Entering a class means entering one of these; by their own names they would match everything."""

RESULT = "()"
"""After a name: what calling it returns."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


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
            calls = (node for node in walk(value.body) if isinstance(node, ast.Call))
            return {name_of(call.func) for call in calls} - {""}
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
