"""Ways through syntax trees that cost little: a project has hundreds of modules.

`ast.walk` looks at every field of every node, and at nodes that hold nothing (`Load`, `Add`). And
as nodes are made by the ten thousand, the garbage collector would look through all objects of the
process again and again: of torch alone there are a million. Trees have no cycles to be found.
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
"""Fields that hold no nodes, or none with anything in it."""

BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""Fields that hold statements, or what holds statements."""


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """By kind of node: its fields that may hold nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = found = tuple(name for name in kind._fields if name not in LEAF_FIELDS)
        return found


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly in a node, in order, but for contexts and operators."""
    found: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that is in it, but for contexts and operators; the outer before the inner."""
    todo = [node]
    for one in todo:
        yield one
        todo += children(one)


def blocks(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The lists of statements (handlers, cases) of a statement, by field."""
    for name in BLOCKS:
        block = getattr(node, name, None)
        if type(block) is list:
            yield name, block


def visit_statements(visitor: ast.NodeTransformer, node: ast.AST) -> None:
    """As `visitor.generic_visit(node)`, but for expressions."""
    for _, block in blocks(node):
        found: list[ast.stmt] = []
        for statement in block:
            new = visitor.visit(statement)
            found += new if isinstance(new, list) else [new]
        block[:] = found


@contextmanager
def gc_paused() -> Iterator[None]:
    """Around work that makes many nodes: the garbage collector rests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
