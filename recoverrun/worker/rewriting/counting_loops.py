"""`while` loops that count their own turns: `while step < limit`, with `step += 1` in the body."""

import ast


def counter_of(node: ast.stmt) -> tuple[str, str] | None:
    """The variable that counts and the limit, as they are written; None for any other loop.

    The limit is a number, a name or attributes of one: reading it again runs no code of the script
    that the loop itself does not run at each turn.
    """
    if not isinstance(node, ast.While) or not isinstance(node.test, ast.Compare):
        return None
    match node.test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Lt()], comparators=[limit]):
            once = sum(_counts(one, name) for one in node.body) == 1
            return (name, ast.unparse(limit)) if once and _is_plain(limit) else None
        case _:
            return None


def _counts(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.AugAssign(
            target=ast.Name(id=target), op=ast.Add(), value=ast.Constant(value=1)
        ) if target == name:
            return True
        case _:
            return False


def _is_plain(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=inner):
            return _is_plain(inner)
        case ast.Constant(value=int()) | ast.Name():
            return True
        case _:
            return False
