"""Our source files, and what is in them: for the tests of the project's own rules."""

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("recoverrun", "rendezvous", "ft_collectives", "templates")
SKIPPED = {"build", "dist", "runs", "__pycache__"}
HIDDEN = {".ci"}  # and ours; other names with a dot belong to tools


def files(top: Path) -> Iterator[Path]:
    """All files below `top` that belong to the project, in order."""
    for folder, names, found in os.walk(top):
        names[:] = sorted(
            n for n in names if n in HIDDEN or not (n in SKIPPED or n.startswith("."))
        )
        for name in sorted(found):
            yield Path(folder, name)


def sources(*folders: str) -> list[Path]:
    """Our Python files, those of `folders` only if any are given."""
    tops = [ROOT / folder for folder in folders or (*PACKAGES, "tests")]
    return [path for top in tops for path in files(top) if path.suffix == ".py"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True)
class Outline:
    """The facts about one file that rules ask for."""

    imports: tuple[tuple[int, str], ...]  # line, dotted name; also inside functions
    functions: tuple[tuple[str, int, int], ...]  # name, line, lines
    by_position: tuple[tuple[str, int, int], ...]  # name, line, parameters that need no name
    classes: tuple[tuple[str, int], ...]  # name, methods
    docstrings: tuple[tuple[int, str], ...]  # line of what has it, and its first word
    predicates: tuple[tuple[int, str], ...]  # line of a function that returns a bool, its docstring
    broad: tuple[tuple[int, int], ...]  # `except Exception`: its line, and that of its body
    assigned: frozenset[str]  # names at module level


@cache
def outline(path: Path) -> Outline:
    tree = ast.parse(path.read_text(), str(path))
    found = list(_statements(tree))
    functions = [one for one in found if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    classes = [one for one in found if isinstance(one, ast.ClassDef)]
    handlers = [one for one in found if isinstance(one, ast.ExceptHandler) and _is_broad(one)]
    targets = [one for node in tree.body for one in _targets(node)]
    return Outline(
        imports=tuple(_imports(path, found)),
        functions=tuple(
            (one.name, one.lineno, (one.end_lineno or one.lineno) - one.lineno + 1)
            for one in functions
        ),
        by_position=tuple(
            (one.name, one.lineno, sum(arg.arg not in {"self", "cls"} for arg in one.args.args))
            for one in functions
            if one.args.vararg is None
        ),
        classes=tuple(
            (one.name, sum(isinstance(part, ast.FunctionDef) for part in one.body))
            for one in classes
        ),
        docstrings=tuple(
            (getattr(one, "lineno", 1), words.split()[0])
            for one in (tree, *classes, *functions)
            if (words := ast.get_docstring(one))
        ),
        predicates=tuple(
            (one.lineno, words)
            for one in functions
            if isinstance(one.returns, ast.Name) and one.returns.id == "bool"
            if (words := ast.get_docstring(one))
        ),
        broad=tuple((one.lineno, one.body[0].lineno) for one in handlers),
        assigned=frozenset(
            one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)
        ),
    )


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements and handlers; nothing else can define, import or catch."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, field, ())


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(c, ast.Name) and c.id in {"Exception", "BaseException"} for c in caught)


def _imports(path: Path, found: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in found:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from recoverrun import worker` names a module by its last part.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


@cache
def modules() -> Mapping[str, Path]:
    """Our modules, tests and templates apart, by their dotted names."""
    return {module_of(path): path for path in sources("recoverrun", "rendezvous", "ft_collectives")}


@cache
def imported_by(module: str) -> tuple[tuple[int, str], ...]:
    """(line, module of ours) that `module` imports, itself apart."""
    found = []
    for line, name in outline(modules()[module]).imports:
        target = name if name in modules() else name.rpartition(".")[0]
        if target in modules() and target != module:
            found.append((line, target))
    return tuple(found)
