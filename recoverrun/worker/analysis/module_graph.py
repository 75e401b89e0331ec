"""The files of a project that a script can import, found without running it.

A working folder may hold hundreds of scripts that have nothing to do with the one that is run. The
call graph goes by names, so files that are never imported must not add theirs. Modules are
matched by the last part of their name, which finds too many files rather than too few.
"""

import ast
import os
import re
from collections.abc import Callable, Iterable, Mapping

from recoverrun.worker.analysis.rank_conditions import BoundNames, Exports, bound_names

_STATEMENT = re.compile(
    rb"^[ \t]*(?:from[ \t]+[.\w]+[ \t]+import[ \t]*\([^)]*\)|(?:from|import)[ \t]+[^\n#]+)", re.M
)
_OUTERMOST = re.compile(rb"[ \t]*([A-Za-z_]\w*)")
_WORD = re.compile(rb"\w+")
_BINDS_RANK = re.compile(rb"(?im)^[^\n#=]*=[^=\n].*rank")
_FUNCTION_OR_CLASS = re.compile(
    rb"(?m)^(?:async[ \t]+def|def|class)\b.*(?:\r?\n(?:[ \t)\]}#].*)?)*"
)
_CONTINUED = re.compile(rb"\\\r?\n")

DYNAMIC_IMPORTS = (b"importlib", b"__import__", b"runpy", b"exec(", b"execfile")
"""Words in a file that may import modules which no statement names: then all are taken."""


def importable_from(sources: Mapping[str, bytes], entry: str) -> dict[str, bytes]:
    """Return those of `sources` (by path) that `entry` can import, and `entry` itself.

    `entry` is the path of a script or the dotted name of a module. All sources are returned if it
    is none of them.
    """
    by_name: dict[str, list[str]] = {}
    for path in sources:
        by_name.setdefault(_module(path), []).append(path)
    if entry in sources:
        todo, importable = [entry], {entry: sources[entry]}
    else:
        last = entry.rpartition(".")[2]
        todo = [*by_name.get(last, ()), *by_name.get("__main__", ())]
        importable = {path: sources[path] for path in todo}
    if not todo:
        return dict(sources)
    while todo:
        text = sources[todo.pop()]
        if any(word in text for word in DYNAMIC_IMPORTS):
            return dict(sources)
        for path in _named(_words(text), by_name):
            if path not in importable:
                importable[path] = sources[path]
                todo.append(path)
    return importable


def exports_of(
    sources: Mapping[str, bytes], parse: Callable[[str, bytes], ast.Module | None]
) -> Exports:
    """Return what modules bind to their rank, or to whether that is zero, and others may import.

    Of modules of one name it is what all of them bind.
    """
    found: dict[str, BoundNames] = {}
    for path, text in sources.items():
        if not _may_export(text) or (tree := parse(path, text)) is None:
            continue
        names, module = bound_names(tree).exports, _module(path)
        if (other := found.get(module)) is not None:
            names = BoundNames(names.ranks & other.ranks, names.flags & other.flags)
        found[module] = names
    return {module: names for module, names in found.items() if names != BoundNames()}


def _may_export(text: bytes) -> bool:
    """True if statements of the module itself may bind a name to a rank, judged by the text.

    Names that its functions and classes bind, others cannot import, unless they are `global`.
    """
    if _BINDS_RANK.search(text) is None:
        return False
    return b"global" in text or _BINDS_RANK.search(_FUNCTION_OR_CLASS.sub(b"", text)) is not None


def imported_exports(text: bytes, exports: Exports) -> Exports:
    """Return those of `exports` whose modules a file names where it imports."""
    if not exports:
        return exports
    words = _words(text)
    return {module: names for module, names in exports.items() if module in words}


def imported_packages(texts: Iterable[bytes]) -> set[str]:
    """Return the outermost names of what these files import by a statement."""
    names: set[str] = set()
    for text in texts:
        for statement in _STATEMENT.findall(_CONTINUED.sub(b" ", text)):
            kind, _, rest = statement.strip().partition(b" ")
            modules = rest.split(b",") if kind == b"import" else [rest]
            names |= {
                found[1].decode() for one in modules if (found := _OUTERMOST.match(one)) is not None
            }
    return names


def _words(text: bytes) -> set[str]:
    """Return every name in the import statements of a file."""
    statements = _STATEMENT.findall(_CONTINUED.sub(b" ", text))
    return {word.decode(errors="replace") for text in statements for word in _WORD.findall(text)}


def _named(words: Iterable[str], by_name: Mapping[str, list[str]]) -> list[str]:
    return [path for word in sorted(words) for path in by_name.get(word, ())]


def _module(path: str) -> str:
    """Return the last part of the name under which a file is imported."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return os.path.basename(os.path.dirname(path)) if stem == "__init__" else stem
