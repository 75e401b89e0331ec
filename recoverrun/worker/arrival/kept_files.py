"""Keeps what the run has written from the first lines of a script that are executed once more.

    if rank == 0:
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        log = open(f"{out}/log.txt", "w")

A fresh process executes them while the others train, and what lies there is theirs by now. Until
the process has its place, a file or folder that was changed since the run began is neither removed,
renamed, replaced nor emptied. Who opens such a file to write it gets it to append to, and what is
written before the place is taken is dropped: it is there already, also what lies between two phases
of training. A folder that was to be removed may be made again.

What this process makes itself, such as a temporary folder, is its own. What a library in C opens by
itself, or another program does, is not seen.
"""

import builtins
import io
import os
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

import torch

REMOVE = {os: ("remove", "rmdir", "unlink"), shutil: ("rmtree",)}
CHANGE = {os: ("truncate", "utime")}
MOVE = {os: ("rename", "replace")}
MAKE = {os: ("link", "mkdir", "symlink")}
"""Functions that remove or change the path of their first argument, move it, make the last one."""

Call = Callable[..., Any]


class KeptFiles:
    """Of the run that began at `since`, in seconds of the wall clock, which files have, too. The
    file `ours` is none of the script's.
    """

    def __init__(self, since: float, ours: str = "") -> None:
        self._since, self._ours = since, ours
        self._on = self._untrained = False
        self._former: list[tuple[Any, str, Any]] = []
        self._own: set[tuple[int, int]] = set()  # device and inode of what was made here
        self._removed: set[str] = set()  # as the script believes
        self._muted: list[tuple[weakref.ref[Any], int]] = []  # a file, and where it leads later
        self.kept: dict[str, None] = {}  # what would have been changed, in order

    def guard(self) -> None:
        """Keep files from now on."""
        self._on = True
        self._put(builtins, "open", partial(self._open, builtins.open))
        self._put(io, "open", partial(self._open, io.open))
        self._put(os, "open", partial(self._open_descriptor, os.open))
        self._put(torch, "save", partial(self._save, torch.save))
        for table, instead in (
            (REMOVE, self._remove), (CHANGE, self._change), (MOVE, self._move), (MAKE, self._make),
        ):  # fmt: skip
            for module, names in table.items():
                for name in names:
                    self._put(module, name, partial(instead, getattr(module, name)))

    def save_nothing(self) -> None:
        """Leave out what torch saves from now on: it has not been trained here, but elsewhere."""
        self._untrained = True

    def release(self) -> None:
        """This process has its place: what it does from now on is done."""
        self._on = False
        for module, name, former in self._former:
            setattr(module, name, former)
        self._former.clear()
        for reference, leads_to in self._muted:
            file = reference()
            if file is not None and not file.closed:
                file.flush()  # what was written before leads nowhere
                os.dup2(leads_to, file.fileno(), inheritable=False)
            os.close(leads_to)
        self._muted.clear()

    def _put(self, module: Any, name: str, instead: Call) -> None:
        former = getattr(module, name)
        self._former.append((module, name, former))
        setattr(module, name, update_wrapper(instead, former))

    # --------------------------------------------------------------------------- what is kept

    def _keeps(self, path: Any) -> bool:
        """True if `path` is of the run: changed since it began, by somebody else."""
        if not self._on or not isinstance(path, (str, bytes, os.PathLike)):
            return False
        at = Path(os.fsdecode(path)).absolute()
        mine = str(at) == self._ours or self._is_own(at)
        kept = not mine and any(map(self._is_young, _within(at)))
        if kept:
            self.kept.setdefault(str(at))
        return kept

    def _is_young(self, at: Path) -> bool:
        try:
            found = os.lstat(at)
        except (OSError, ValueError):
            return False  # the call itself says what is wrong with it
        regular = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        return regular and found.st_mtime >= self._since

    def _is_own(self, at: Path) -> bool:
        """True if this process made it, or a folder around it."""
        return any(_inode(one) in self._own for one in (at, *at.parents))

    def _was_removed(self, path: Any) -> bool:
        at = Path(os.fsdecode(path)).absolute()
        return any(str(one) in self._removed for one in (at, *at.parents))

    def _made(self, path: Any) -> None:
        self._own.update(filter(None, [_inode(path)]))

    # --------------------------------------------------------------------------- what is called

    def _open(self, original: Call, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        named = self._on and isinstance(file, (str, bytes, os.PathLike))
        there = not named or os.path.lexists(file)
        adds = "w" in mode or ("a" in mode and "+" not in mode)
        adds = adds or ("x" in mode and named and there and self._was_removed(file))
        if not (adds and named and os.path.isfile(file) and self._keeps(os.path.realpath(file))):
            opened = original(file, mode, *args, **kwargs)
            if named and ("w" in mode or not there):
                self._made(file)
            return opened
        opened = original(file, mode.replace("w", "a").replace("x", "a"), *args, **kwargs)
        self._muted.append((weakref.ref(opened), os.dup(opened.fileno())))
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, opened.fileno(), inheritable=False)
        os.close(nowhere)
        return opened

    def _open_descriptor(
        self, original: Call, path: Any, flags: int, *args: Any, **kwargs: Any
    ) -> Any:
        new = self._on and flags & os.O_CREAT and not kwargs and not os.path.lexists(path)
        fd = original(path, flags, *args, **kwargs)
        if new:
            self._made(path)
        return fd

    def _save(self, original: Call, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if self._keeps(f) or (self._on and self._untrained):
            return
        original(obj, f, *args, **kwargs)
        if self._on and isinstance(f, (str, os.PathLike)):
            self._made(f)

    def _change(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        kept = kwargs.get("dir_fd") is None and self._keeps(path)
        return None if kept else original(path, *args, **kwargs)

    def _remove(self, original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None and self._keeps(path):
            self._removed.add(str(Path(os.fsdecode(path)).absolute()))
            return None
        return original(path, *args, **kwargs)

    def _move(self, original: Call, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not (self._keeps(src) or self._keeps(dst)):
            return original(src, dst, *args, **kwargs)
        if self._is_own(Path(os.fsdecode(src)).absolute()):
            os.unlink(src)  # written to take the place of what is kept
        return None

    def _make(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        paths = [one for one in args[:2] if isinstance(one, (str, bytes, os.PathLike))]
        if not self._on or not paths or {*kwargs} & {"dir_fd", "dst_dir_fd"}:
            return original(*args, **kwargs)
        if os.path.lexists(paths[-1]) and self._was_removed(paths[-1]):
            return None
        result = original(*args, **kwargs)
        self._made(paths[-1])
        return result


def _within(at: Path) -> Iterator[Path]:
    """The folder, and all that is in it, as far as that can be looked at."""
    yield at
    if at.is_dir() and not at.is_symlink():
        for folder, folders, files in os.walk(at):
            yield from (Path(folder, name) for name in (*folders, *files))


def _inode(path: Any) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
