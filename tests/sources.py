"""Our source files, and what each imports of ours: for the tests of the project's own rules."""

import ast
import os
from collections.abc import Iterator, Mapping
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


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import in the file, also inside functions."""
    package = module_of(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
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
    for line, name in imports(modules()[module]):
        target = name if name in modules() else name.rpartition(".")[0]
        if target in modules() and target != module:
            found.append((line, target))
    return tuple(found)
