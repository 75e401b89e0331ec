"""Fast traversal of syntax trees, as a project may have hundreds of modules.

`ast.walk` visits every field of every node, and nodes that hold nothing (`Load`, `Add`). Parsing
makes nodes by the ten thousand, for which the garbage collector would search all objects of the
process again and again; torch alone has a million. Trees have no cycles to be found.
"""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager

LEAF_FIELDS = frozenset(
    {
        "ctx", "op", "ops", "id", "attr", "arg", "kind", "type_comment", "level", "module",
        "conversion", "is_async", "asname", "simple", "rest", "kwd_attrs", "tag", "type_ignores",
    }
)  # fmt: skip
"""Fields that hold no nodes, or only nodes without content."""

BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""Fields that hold statements, handlers or cases."""


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """A memo: the fields of each kind of node that may hold nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = fields = tuple(name for name in kind._fields if name not in LEAF_FIELDS)
        return fields


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly in a node, in order, except contexts and operators."""
    nodes: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            nodes += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            nodes.append(value)
    return nodes


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes in it, the outer before the inner, as `children` finds them."""
    todo = [node]
    for visited in todo:
        yield visited
        todo += children(visited)


def blocks(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the lists of statements (handlers, cases) of a statement, with their fields."""
    for name in BLOCKS:
        block = getattr(node, name, None)
        if type(block) is list:
            yield name, block


def visit_statements(visitor: ast.NodeTransformer, node: ast.AST) -> None:
    """Visit the statements as `visitor.generic_visit(node)` does, without expressions."""
    for _, block in blocks(node):
        statements: list[ast.stmt] = []
        for statement in block:
            new = visitor.visit(statement)
            statements += new if isinstance(new, list) else [new]
        block[:] = statements


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector around work that makes many nodes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
