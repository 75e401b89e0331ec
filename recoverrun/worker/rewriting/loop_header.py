"""The call in a loop's header, as an expression that makes its arguments and does not call it.

    for x in batches(rows, rank, world):      ->      (batches, (rows, rank, world), {})

Evaluated with the names of another rank it tells what that rank gives the function. So it must be
plain: no call but of functions without effects, and no name that it binds.
"""

import ast
import builtins

from recoverrun.worker.analysis.bare_names import name_of
from recoverrun.worker.instrumentation import WITHOUT_EFFECT

PLAIN = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Compare, ast.Constant, ast.IfExp, ast.List, ast.Name,
    ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp, ast.boolop, ast.cmpop,
    ast.expr_context, ast.keyword, ast.operator, ast.unaryop,
)  # fmt: skip


def call_in(iterated: ast.expr) -> ast.expr | None:
    """Function, arguments and keywords of the call whose items are iterated over, also below
    `enumerate`; None if it is no call, not a plain one, or one of Python's own functions.
    """
    while _enumerates(iterated):
        assert isinstance(iterated, ast.Call), "just seen"
        iterated = iterated.args[0]
    if not isinstance(iterated, ast.Call) or hasattr(builtins, name_of(iterated.func)):
        return None
    keywords = iterated.keywords
    if not all(map(_is_plain, [iterated.func, *iterated.args, *keywords])):
        return None
    names = [None if one.arg is None else ast.Constant(one.arg) for one in keywords]
    entries = ast.Dict(list(names), [one.value for one in keywords])
    arguments = ast.Tuple(iterated.args, ast.Load())
    made = ast.Tuple([iterated.func, arguments, entries], ast.Load())
    return ast.fix_missing_locations(ast.copy_location(made, iterated))


def _enumerates(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and bool(node.args) and name_of(node.func) == "enumerate"


def _is_plain(root: ast.AST) -> bool:
    return all(
        isinstance(node, PLAIN)
        or (isinstance(node, ast.Call) and name_of(node.func) in WITHOUT_EFFECT)
        for node in ast.walk(root)
    )
