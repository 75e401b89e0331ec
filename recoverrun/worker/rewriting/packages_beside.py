"""Packages that a project imports from elsewhere, and that may train in its place.

A package that nobody installed, on `PYTHONPATH` or where an editable installation points, is as
much the script's own as what lies beside the script. An installed one may hold the backward for a
loop of the script (timm's `NativeScaler`), or the loop itself (the engine of ignite): then it is
the script's own, too. Nothing is imported to find this out.
"""

import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from recoverrun.worker import own_files
from recoverrun.worker.analysis.module_graph import importable_from, imported_packages
from recoverrun.worker.rewriting.project import (
    Project,
    is_installation,
    python_files,
    small_file,
    with_real_paths,
)

PACKAGE_FILES = 1000
"""Files of an installed package that are searched."""

_TRAINS = re.compile(rb"\.[ \t]*backward[ \t]*\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The files by which loops are judged, by their real paths."""

    project: Project  # with the packages elsewhere that nobody installed
    sources: dict[str, bytes]  # of the project, as far as the script can import them
    installed: dict[str, dict[str, bytes]]  # of installed packages with a backward in them

    def files(self, *, whole: bool) -> dict[str, bytes]:
        """Return the sources, and of installed packages the files with a backward, or all."""
        files = {
            path: text
            for texts in self.installed.values()
            for path, text in texts.items()
            if whole or _trains(text)
        }
        return files | self.sources

    def holds_backward(self) -> bool:
        """True if there is a backward in one of them."""
        return bool(self.installed) or any(map(_trains, self.sources.values()))

    def trainers(self, trained: Collection[str]) -> Project:
        """Return the installed packages that hold a file which is `trained` in."""
        packages = [
            one for one, texts in self.installed.items() if not texts.keys().isdisjoint(trained)
        ]
        return Project.of(packages)


def scan(project: Project, known: Collection[str] = ()) -> Scan:
    """Read the project's files, and packages that it imports from elsewhere, except torch and those
    `known`.
    """
    installed: dict[str, dict[str, bytes]] = {}
    asked = {"torch", *known, *sys.stdlib_module_names}
    while True:
        sources = importable_from(dict(project.sources()), project.entry)
        roots: list[str] = []
        for name in sorted(imported_packages(sources.values()) - asked):
            asked.add(name)
            for path in _places(name):
                ours = own_files.has(os.path.join(path, ""))
                if ours or path in project.roots or project.contains(path):
                    continue
                if is_installation(os.path.dirname(path)):
                    installed |= _trained_in(path)
                else:
                    roots.append(path if os.path.isdir(path) else os.path.dirname(path))
        if not roots:
            return Scan(project=project, sources=sources, installed=installed)
        project = project.extended(roots)


def _trains(text: bytes) -> bool:
    """True if a source calls a backward. The plain word is found fast, and most have none."""
    return b"backward" in text and _TRAINS.search(text) is not None


def _places(name: str) -> Iterator[str]:
    """Yield the folders of a package, or the file of a module."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        return  # Any finder may be asked: Python hears it again if the script imports this.
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        yield from spec.submodule_search_locations
    elif spec.has_location and spec.origin is not None and spec.origin.endswith(".py"):
        yield spec.origin


def _trained_in(path: str) -> dict[str, dict[str, bytes]]:
    """Return the files of an installed package or module if there is a backward in one of them."""
    paths = python_files(path) if os.path.isdir(path) else iter([path])
    texts = {
        one: text
        for one in itertools.islice(paths, PACKAGE_FILES)
        if (text := small_file(one)) is not None
    }
    if not any(map(_trains, texts.values())):
        return {}
    return {path: {real: texts[one] for one, real in with_real_paths(texts)}}
