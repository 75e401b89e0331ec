"""Names that a script writes after it has made its objects: `self.at += 1`, `global place`."""

import ast
from collections.abc import Container, Iterable

from recoverrun.worker.analysis.bare_names import CONSTRUCTORS
from recoverrun.worker.analysis.syntax_trees import children


def written_later(modules: Iterable[ast.Module], names: Container[str]) -> bool:
    """True if an attribute of one of these `names` is written outside of constructors, or a
    function says that one of them is a variable of its module.
    """
    todo: list[ast.AST] = list(modules)
    while todo:
        node = todo.pop()
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()) if name in names:
                return True
            case ast.Global(names=declared) if any(name in names for name in declared):
                return True
            case ast.FunctionDef(name=name) if name in CONSTRUCTORS:
                pass
            case _:
                todo += children(node)
    return False
