"""Shields around what rank 0 does alone, in the body of a loop that is executed as another rank.

    if rank == 0 and step % 9 == 0:      ->    if rank == 0:
        writer.add_scalar("loss", loss)            with __recoverrun__.beside():
                                                       if step % 9 == 0:
                                                           writer.add_scalar("loss", loss)

Executed as rank 0, such code would end the execution wherever it needs what only rank 0 has.
"""

import ast
import copy
from collections.abc import Sequence

from recoverrun.worker.analysis.rank0_code import communicates, divided, only_leaves
from recoverrun.worker.analysis.rank_conditions import BoundNames, rank0_conditions
from recoverrun.worker.analysis.syntax_trees import blocks
from recoverrun.worker.instrumentation import RUNTIME_NAME


def shielded(body: Sequence[ast.stmt], bound: BoundNames) -> list[ast.stmt]:
    """Return a body with shields. Changes its statements."""
    for place, statement in enumerate(body):
        _shield_inside(statement, bound)
        if not isinstance(statement, ast.If) or statement.orelse:
            continue
        leaves, rest = only_leaves(statement.body), body[place + 1 :]
        lone = rest if leaves else statement.body
        conditions = rank0_conditions(statement.test, not leaves, bound)
        if not conditions or not lone or communicates(lone):
            continue
        statement.test, *asked = divided(statement.test, conditions[0], not leaves)
        decides = copy.copy(statement.body)
        inside = [ast.copy_location(ast.If(part, decides, []), part) for part in asked]
        if leaves:
            return [*body[: place + 1], _beside([*inside, *shielded(rest, bound)])]
        statement.body = [_beside(inside or decides)]
    return list(body)


def _shield_inside(node: ast.AST, bound: BoundNames) -> None:
    for field, block in blocks(node):
        if field in ("handlers", "cases"):
            for part in block:
                _shield_inside(part, bound)
        else:
            block[:] = shielded(block, bound)


def _beside(body: Sequence[ast.stmt]) -> ast.stmt:
    runtime = ast.Name(RUNTIME_NAME, ast.Load())
    function = ast.Attribute(runtime, "beside", ast.Load())
    call = ast.Call(function, [], [])
    for node in (runtime, function, call):
        ast.copy_location(node, body[0])
    return ast.copy_location(ast.With([ast.withitem(call)], list(body)), body[0])
