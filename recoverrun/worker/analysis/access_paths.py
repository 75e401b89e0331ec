"""What a piece of a script reads and writes, by names, also dotted ones, and what flows from it."""

import ast
import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from recoverrun.worker.analysis.syntax_trees import walk
from recoverrun.worker.instrumentation import RUNTIME_NAME, Making

OVERWRITING_MODES = re.compile(r"[wx][bt]?\+?")
"""How a file is opened that loses what it held."""


def written_paths(body: Iterable[ast.AST]) -> tuple[str, ...]:
    """Names of what `body` assigns, or changes in place as torch spells it."""
    found: list[ast.expr] = []
    for node in (node for statement in body for node in walk(statement)):
        match node:
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                found.append(node)
            case ast.Subscript(value=value, ctx=ast.Store()):
                found.append(value)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if _in_place(method):
                found.append(value)
            case ast.keyword(arg="out", value=value):
                found.append(value)
    return tuple(sorted({name for name in map(access_path, found) if name}))


def read_paths(body: Iterable[ast.AST]) -> tuple[str, ...]:
    nodes = (node for statement in body for node in walk(statement))
    loaded = {access_path(node) for node in nodes if _is_loaded(node)}
    return tuple(sorted(name for name in loaded if name and not name.startswith(RUNTIME_NAME)))


def paths_changed_by(call: ast.Expr) -> tuple[str, ...]:
    """Names of what a call that stands by itself may change: also that of which it is a method."""
    function = call.value.func if isinstance(call.value, ast.Call) else None
    owner = access_path(function.value) if isinstance(function, ast.Attribute) else ""
    return tuple(sorted({*written_paths([call]), *([owner] if owner else [])}))


def derived_paths(names: Iterable[str], rest: Sequence[ast.stmt]) -> tuple[str, ...]:
    """`names`, and those that are assigned something made of them in what follows."""
    found = set(names)
    for statement in _assignments(rest):
        if not found.isdisjoint(read_paths([statement])):
            found.update(written_paths([statement]))
    return tuple(sorted(found))


def access_path(node: ast.expr) -> str:
    """`a.b.c` as it is written; "" of anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if before := access_path(value):
            return f"{before}.{name}"
    return ""


def makings(
    body: Iterable[ast.stmt], asked: Sequence[ast.expr], function: str, filename: str
) -> tuple[Making, ...]:
    """How `body`, in `function`, makes each thing that it gives a name, if `asked` is so."""
    found = []
    for statement in body:
        match statement:
            case ast.Assign(targets=[target], value=value) if name := access_path(target):
                found.append(_making(name, _guarded(asked, value), function, filename))
            case ast.AnnAssign(target=target, value=ast.expr() as value) if name := access_path(
                target
            ):
                found.append(_making(name, _guarded(asked, value), function, filename))
    return tuple(found)


def _guarded(asked: Sequence[ast.expr], value: ast.expr) -> ast.expr:
    if not asked:
        return value
    both = ast.BoolOp(ast.And(), [ast.Constant(True), *asked])
    whole = ast.IfExp(both, value, ast.Constant(None))
    return ast.fix_missing_locations(ast.copy_location(whole, value))


def _making(name: str, value: ast.expr, function: str, filename: str) -> Making:
    own = copy.deepcopy(value)
    for call in (node for node in walk(own) if isinstance(node, ast.Call)):
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(argument, ast.Constant) and _overwrites(argument.value):
                argument.value = "a" + argument.value[1:]
    code = compile(ast.Expression(own), filename, "eval", dont_inherit=True)
    return Making(name, function, code, tuple(one for one in read_paths([value]) if "." not in one))


def _overwrites(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and OVERWRITING_MODES.fullmatch(value) is not None


def _assignments(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """In the order of the text, those in branches and loops included."""
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
