"""The files of a project that a script can import, found without running it.

A working folder may hold hundreds of scripts that have nothing to do with the one that is run. The
call graph uses bare names, so files that are never imported must not add theirs. Modules are
matched by the last part of their name, which finds too many files rather than too few.
"""

import os
import re
from collections.abc import Iterable, Mapping

_STATEMENT = re.compile(
    rb"^[ \t]*(?:from[ \t]+[.\w]+[ \t]+import[ \t]*\([^)]*\)|(?:from|import)[ \t]+[^\n#]+)", re.M
)
_WORD = re.compile(rb"\w+")
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
