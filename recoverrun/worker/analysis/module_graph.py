"""Which files of a project a script can import, told without running it.

A working folder may hold hundreds of scripts that have nothing to do with the one that is run, and
names in the call graph are bare ones: what is never imported must not lend its names. Names of
modules are matched by their last part, which finds too many files rather than too few.
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
"""In the text of a file that may import what no statement names: then all may be imported."""


def importable_from(sources: Mapping[str, bytes], entry: str) -> dict[str, bytes]:
    """Those of `sources` (by path) that `entry` can import, and itself.

    `entry` is the path of a script or the dotted name of a module; all may be reached if it is
    neither of the sources.
    """
    by_name: dict[str, list[str]] = {}
    for path in sources:
        by_name.setdefault(_module(path), []).append(path)
    if entry in sources:
        todo, found = [entry], {entry: sources[entry]}
    else:
        last = entry.rpartition(".")[2]
        todo = [*by_name.get(last, ()), *by_name.get("__main__", ())]
        found = {path: sources[path] for path in todo}
    if not todo:
        return dict(sources)
    while todo:
        text = sources[todo.pop()]
        if any(word in text for word in DYNAMIC_IMPORTS):
            return dict(sources)
        for path in _named(_words(text), by_name):
            if path not in found:
                found[path] = sources[path]
                todo.append(path)
    return found


def _words(text: bytes) -> set[str]:
    """Every name in the import statements of a file."""
    statements = _STATEMENT.findall(_CONTINUED.sub(b" ", text))
    return {word.decode(errors="replace") for one in statements for word in _WORD.findall(one)}


def _named(words: Iterable[str], by_name: Mapping[str, list[str]]) -> list[str]:
    return [path for word in sorted(words) for path in by_name.get(word, ())]


def _module(path: str) -> str:
    """The last part of the name under which a file is imported."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return os.path.basename(os.path.dirname(path)) if stem == "__init__" else stem
