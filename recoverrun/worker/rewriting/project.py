"""The files of a script's project: its modules are found here before it runs, by folders."""

import functools
import itertools
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from recoverrun.worker import own_files

# Bounds of the search for modules of the project, so that a home directory costs little.
SCAN_DEPTH = 3
SCAN_FILES = 500
SCAN_FILE_BYTES = 1 << 20
SCAN_ENTRIES = 20_000  # of folders, whatever they are: data sets lie beside scripts, too

INSTALLED = frozenset({"site-packages", "dist-packages"})
SKIPPED_FOLDERS = INSTALLED | {"__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True)
class Project:
    """The folders whose modules are the script's own: beside the script, the working one, and where
    packages lie that nobody installed.
    """

    roots: tuple[str, ...]
    entry: str = ""  # the script's path, or the name of the module that is run

    @classmethod
    def of(cls, folders: Iterable[str], entry: str = "") -> "Project":
        """Return the project below `folders`, without those that hold all sorts of packages."""
        roots = dict.fromkeys(
            path
            for folder in folders
            for path in (os.path.abspath(folder), os.path.realpath(folder))
        )
        return cls(tuple(root for root in roots if not _is_shared_folder(root)), entry)

    def extended(self, roots: Iterable[str]) -> "Project":
        """Return the project with these folders, too."""
        more = Project.of(roots).roots
        return replace(self, roots=tuple(dict.fromkeys((*self.roots, *more))))

    def contains(self, path: str) -> bool:
        """True if a file is the project's: not installed into it, not Python's, not ours."""
        if _is_in_stdlib(path) or own_files.has(path):
            return False
        return any(
            path == root or (_below(path, root) and INSTALLED.isdisjoint(_parts(path, root)))
            for root in self.roots
        )

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield paths and contents of the project's files, within the bounds above."""
        seen: set[str] = set()
        for root in self.roots:
            for path, real in with_real_paths(python_files(root)):
                if len(seen) == SCAN_FILES:
                    return
                if real in seen or not self.contains(path):
                    continue
                seen.add(real)
                data = small_file(path)
                if data is not None:
                    yield real, data


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _parts(path: str, folder: str) -> list[str]:
    return path[len(folder) :].split(os.sep)


def is_installed(path: str) -> bool:
    """True if a file belongs to Python or to a package that is installed beside it."""
    return _is_in_stdlib(path) or not INSTALLED.isdisjoint(path.split(os.sep))


def _is_in_stdlib(path: str) -> bool:
    """True if a path is in the standard library (in which packages may be installed)."""
    return any(
        path == folder or (_below(path, folder) and INSTALLED.isdisjoint(_parts(path, folder)))
        for folder in _stdlib_folders()
    )


@functools.cache
def _stdlib_folders() -> frozenset[str]:
    return frozenset(
        os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")
    )


def _is_shared_folder(root: str) -> bool:
    """True if a folder is one of Python's own, in which packages of all origins are."""
    return os.path.basename(root) in INSTALLED or _is_in_stdlib(root)


@functools.cache
def is_installation(folder: str) -> bool:
    """True of a folder into which packages are installed, Python's own or one of `pip --target`."""
    if _is_in_stdlib(folder) or not INSTALLED.isdisjoint(folder.split(os.sep)):
        return True
    return any(entry.name.endswith(".dist-info") for entry in _entries(folder))


def with_real_paths(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield paths with `os.path.realpath` of each; the folder of many files is resolved once."""
    folders: dict[str, str] = {}
    for path in paths:
        if os.path.islink(path):
            yield path, os.path.realpath(path)
            continue
        folder, name = os.path.split(os.path.abspath(path))
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        yield path, os.path.join(folders[folder], name)


def python_files(root: str) -> Iterator[str]:
    """Yield files from the outer folders to the inner ones, so that the bounds cut the far ones."""
    level = [root]
    entries = 0
    for _ in range(SCAN_DEPTH + 1):
        inner: list[str] = []
        for folder in level:
            batch = list(itertools.islice(_entries(folder), SCAN_ENTRIES - entries))
            entries += len(batch)
            for entry in sorted(batch, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False) and not _is_skipped(folder, entry.name):
                    inner.append(entry.path)
        level = inner


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return  # It vanished, or is not ours to look into.


def _is_skipped(folder: str, name: str) -> bool:
    if name.startswith(".") or name in SKIPPED_FOLDERS:
        return True
    return os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))  # a virtual environment


def small_file(path: str) -> bytes | None:
    try:
        if os.path.getsize(path) > SCAN_FILE_BYTES:
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None  # It vanished, or is not ours to read: no module of ours, then.
