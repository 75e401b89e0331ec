"""Statements that only compute variables from others, by their text."""

import ast
from collections.abc import Sequence

from recoverrun.worker.analysis.syntax_trees import walk

FUNCTIONS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "round", "sum"})
METHODS = frozenset(
    {
        "abs", "argmax", "cat", "clamp", "clone", "cpu", "detach", "double", "dim", "exp", "flip",
        "float", "item", "lerp", "log", "max", "mean", "min", "norm", "normalize", "numel", "numpy",
        "pow", "reshape", "roll", "sigmoid", "size", "softmax", "sqrt", "squeeze", "stack", "std",
        "sum", "t", "tanh", "to", "tolist", "transpose", "unsqueeze", "var", "view", "where",
    }
)  # fmt: skip
"""Functions and methods that compute something from values, and change nothing."""

KEEPS = METHODS | {"backward", "manual_backward", "scale"}
"""Methods that leave their owner and what they are given as they were."""

CHANGES = frozenset({"append", "appendleft", "clear", "extend", "insert", "pop", "popleft"})
"""Methods that change the container itself; so do those of tensors that end with `_`."""

EXPRESSIONS = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.BinOp, ast.UnaryOp,
    ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Starred, ast.keyword, ast.Call,
)  # fmt: skip
"""Kinds of expressions that may be in the slice."""

Path = tuple[str, ...]
"""A variable, and attributes or entries (`['key']`) on the way from it."""


def path_of(node: ast.AST) -> Path:
    """The path that an expression is, () if it is none."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=name) if around := path_of(value):
            return (*around, name)
        case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)):
            return (*around, f"[{key!r}]") if (around := path_of(value)) else ()
    return ()


def paths_written(statement: ast.stmt) -> set[Path] | None:
    """The paths that a statement writes; None if it may do anything else."""
    match statement:
        case ast.Pass():
            return set()
        case ast.Assign(targets=targets, value=value) if _is_pure(value):
            return _joined([_target(one) for one in targets])
        case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_pure(value):
            return _target(target)
        case ast.AugAssign(target=target, value=value) if _is_pure(value):
            return _target(target)
        case ast.Expr(value=ast.Call() as call):
            return _changed_by(call)
        case ast.If(test=test, body=body, orelse=orelse) if _is_pure(test):
            return _joined([paths_written(one) for one in (*body, *orelse)])
        case ast.With(items=[ast.withitem(context_expr=block, optional_vars=None)], body=body):
            if ast.unparse(block) in ("torch.no_grad()", "torch.inference_mode()"):
                return _joined([paths_written(one) for one in body])
    return None


def is_rebound_and_changed(statements: Sequence[ast.stmt]) -> bool:
    """True if one path is given another value by them, and changed in place, too: that value may be
    a part of something else, as `x.detach()` is.
    """
    rebound, changed = set[Path](), set[Path]()
    for node in (inner for one in statements for inner in walk(one)):
        match node:
            case ast.Assign(targets=targets):
                parts = [part for one in targets for part in _parts(one)]
                rebound |= {path_of(part) for part in parts}
                others = [part for part in parts if not path_of(part)]
                changed |= {path for part in others for path in _target(part) or ()}
            case ast.AnnAssign(target=target):
                rebound.add(path_of(target))
            case ast.AugAssign(target=target):
                changed |= _target(target) or set()
            case ast.Expr(value=ast.Call() as call):
                changed |= _changed_by(call) or set()
    return not changed.isdisjoint(rebound)


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for one in target.elts for part in _parts(one)]
    return [target]


def _joined(parts: Sequence[set[Path] | None]) -> set[Path] | None:
    found = set[Path]()
    for one in parts:
        if one is None:
            return None
        found |= one
    return found


def _target(node: ast.expr) -> set[Path] | None:
    if path := path_of(node):
        return {path}
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return _joined([_target(one) for one in elements])
        case ast.Subscript(value=value, slice=key) if _is_pure(key) and (path := path_of(value)):
            return {path}
    return None


def _changed_by(call: ast.Call) -> set[Path] | None:
    """The path that a method changes in place, also one that is called on its result."""
    owner: ast.expr = call
    while isinstance(owner, ast.Call):
        match owner:
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if changes_owner(method):
                if not all(map(_is_pure, (*owner.args, *owner.keywords))):
                    return None
                owner = value
            case _:
                return None
    if isinstance(owner, ast.Subscript) and not path_of(owner) and _is_pure(owner.slice):
        owner = owner.value
    path = path_of(owner)
    return {path} if path else None


def changes_owner(method: str) -> bool:
    return method in CHANGES or (method.endswith("_") and not method.endswith("__"))


def _is_pure(expression: ast.AST) -> bool:
    """True if it only computes."""
    for node in walk(expression):
        if not isinstance(node, EXPRESSIONS):
            return False
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                pass
            case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
                pass
            case ast.Call():
                return False
            case ast.keyword(arg=None | "out"):
                return False  # it is written to, or may be
            case ast.Name(id=name) | ast.Attribute(attr=name) if name.startswith("__"):
                return False  # private, or magic
    return True
