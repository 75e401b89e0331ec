"""Access paths (`a.b.c`) that code reads and writes, and paths of values derived from them."""

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from recoverrun.worker.analysis.syntax_trees import walk
from recoverrun.worker.instrumentation import RUNTIME_NAME, Making

OVERWRITING_MODES = re.compile(r"[wx][bt]?\+?")
"""Modes of `open` that erase what a file held."""


def written_paths(body: Iterable[ast.AST]) -> tuple[str, ...]:
    """Return the paths that `body` assigns, or changes in place by a method such as `add_`."""
    targets: list[ast.expr] = []
    for node in (node for statement in body for node in walk(statement)):
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                targets.append(node)
            case ast.Subscript(value=value, ctx=ast.Store()):
                targets.append(value)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if _in_place(method):
                targets.append(value)
            case ast.keyword(arg="out", value=value):
                targets.append(value)
    return tuple(sorted({name for name in map(access_path, targets) if name}))


def read_paths(body: Iterable[ast.AST]) -> tuple[str, ...]:
    """Return the paths that `body` reads."""
    nodes = (node for statement in body for node in walk(statement))
    loaded = {access_path(node) for node in nodes if _is_loaded(node)}
    return tuple(sorted(name for name in loaded if name and not name.startswith(RUNTIME_NAME)))


def paths_changed_by(call: ast.Expr) -> tuple[str, ...]:
    """Return the paths that a call statement may change, including the owner of the method."""
    function = call.value.func if isinstance(call.value, ast.Call) else None
    owner = access_path(function.value) if isinstance(function, ast.Attribute) else ""
    return tuple(sorted({*written_paths([call]), *([owner] if owner else [])}))


def derived_paths(names: Iterable[str], rest: Sequence[ast.stmt]) -> tuple[str, ...]:
    """Return `names`, and the paths that `rest` assigns values made from them."""
    derived = set(names)
    for statement in _assignments(rest):
        if not derived.isdisjoint(read_paths([statement])):
            derived.update(written_paths([statement]))
    return tuple(sorted(derived))


def access_path(node: ast.expr) -> str:
    """Return `a.b.c` as it is written; "" for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if before := access_path(value):
            return f"{before}.{name}"
    return ""


def makings(
    body: Iterable[ast.stmt], asked: Sequence[ast.expr], function: str, filename: str
) -> tuple[Making, ...]:
    """Return how `body`, in `function`, makes each value that it assigns, if `asked` holds."""
    made = []
    for statement in body:
        match statement:
            case ast.Assign(targets=[target], value=value) if name := access_path(target):
                made.append(_making(name, _guarded(asked, value), function, filename))
            case ast.AnnAssign(target=target, value=ast.expr() as value) if name := access_path(
                target
            ):
                made.append(_making(name, _guarded(asked, value), function, filename))
    return tuple(made)


def _guarded(asked: Sequence[ast.expr], value: ast.expr) -> ast.expr:
    if not asked:
        return value
    both = ast.BoolOp(ast.And(), [ast.Constant(True), *asked])
    whole = ast.IfExp(both, value, ast.Constant(None))
    return ast.fix_missing_locations(ast.copy_location(whole, value))


def _making(name: str, value: ast.expr, function: str, filename: str) -> Making:
    copied = copy.deepcopy(value)
    for call in (node for node in walk(copied) if isinstance(node, ast.Call)):
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(argument, ast.Constant) and _overwrites(argument.value):
                argument.value = "a" + argument.value[1:]
    code = compile(ast.Expression(copied), filename, "eval", dont_inherit=True)
    return Making(name, function, code, read_paths([value]))


def _overwrites(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and OVERWRITING_MODES.fullmatch(value) is not None


def _assignments(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield assignments in the order of the text, also in branches and loops."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield statement
        for field in ("body", "handlers", "orelse", "finalbody"):
            inner = getattr(statement, field, None)
            if isinstance(inner, list) and not isinstance(statement, ast.ClassDef):
                yield from _assignments(inner)


def _is_loaded(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)


def _in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__")
