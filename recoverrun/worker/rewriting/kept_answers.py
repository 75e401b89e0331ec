"""Answers about source files, kept between runs in the user's cache folder.

An answer follows from bytes alone: of the files that it is about, of the code that finds it, and of
Python's version. Their digest is the name under which it is kept. So an answer about another
version of anything has another name, is not found, and never has to be called invalid.

This is how Python keeps bytecode, and `-B` (PYTHONDONTWRITEBYTECODE) keeps both from being written.
As with bytecode, ranks that start together for the first time all find out the same. One of them
could do so for its node: that saves CPU time, but starts nobody sooner, as the others would wait
for it, also where it is stopped meanwhile.

The folder and its files are used only if they belong to this user and are closed to others. They
hold JSON behind its digest, so nothing in them is executed, and what a full disk or a crash has cut
off is not taken. Whatever fails here, the answer is found anew.
"""

import functools
import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from recoverrun.worker import own_files

NAME = "recoverrun"
DIGEST_BYTES = 20
MOST_BYTES = 32 << 20
MOST_ENTRIES = 4000
"""Beyond either, the older half goes."""

CODE = ("worker/analysis", "worker/rewriting", "worker/instrumentation.py", "worker/own_files.py")
"""Our own sources on which an answer depends."""


class KeptAnswers:
    """Answers about one subject, such as a project; with no folder, none is kept."""

    def __init__(self, folder: Path | None, subject: Iterable[bytes] = ()) -> None:
        self._folder = folder
        self._subject = b"" if folder is None else _digest(subject)
        self._pruned = False

    def get(self, *question: bytes) -> Any:
        """Return the plain values that answer a question, None if none are kept."""
        if self._folder is None:
            return None
        try:
            with _opened(self._folder) as folder:
                return _read(folder, self._name(question))
        except (OSError, ValueError, RecursionError):
            return None

    def put(self, answer: Any, *question: bytes) -> None:
        """Keep plain values as the answer to a question, if that is possible."""
        if self._folder is None or sys.dont_write_bytecode:
            return
        body = json.dumps(answer).encode()
        with suppress(OSError):
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with _opened(self._folder) as folder:
                _write(folder, self._name(question), _digest([body]) + body)
                if not self._pruned:
                    self._pruned = True
                    _prune(folder)

    def _name(self, question: Iterable[bytes]) -> str:
        return _digest((self._subject, _of_our_code(), *question)).hex()


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return where this user's answers are kept, None if there is no home directory."""
    base = Path(environ.get("XDG_CACHE_HOME") or "")
    if not base.is_absolute():  # one that is not has to be ignored
        base = Path(environ.get("HOME") or "", ".cache")
    return base / NAME if base.is_absolute() else None


def _digest(parts: Iterable[bytes]) -> bytes:
    """Return a digest of which the sizes of the parts are part: none runs over into the next."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


@functools.cache
def _of_our_code() -> bytes:
    """Return a digest of the code that finds answers, and of Python's version.

    Raises OSError if the code cannot be read: then nothing is kept.
    """
    parts = [sys.version.encode()]
    for name in CODE:
        place = Path(own_files.FOLDERS[0], name)
        for path in sorted(place.glob("*.py")) if place.suffix == "" else [place]:
            parts += [path.name.encode(), path.read_bytes()]
    return _digest(parts)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a folder that is this user's alone; what is done through it stays in there."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _is_private(os.fstat(folder)):
            raise PermissionError(f"{path} is not this user's alone")
        yield folder
    finally:
        os.close(folder)


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _read(folder: int, name: str) -> Any:
    """Return what a file holds. Raises OSError or ValueError if it is none of ours, or damaged."""
    # A pipe in its place would keep us waiting.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not (stat.S_ISREG(status.st_mode) and _is_private(status)):
            raise PermissionError(f"{name} is not this user's alone")
        if status.st_size > MOST_BYTES:
            raise ValueError(f"{name} has {status.st_size} bytes")
        content = file.read()
    digest, body = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if digest != _digest([body]):
        raise ValueError(f"{name} is damaged")
    return json.loads(body)


def _write(folder: int, name: str, content: bytes) -> None:
    """Have a file appear with all of its content, in the place of one that may be there."""
    draft = f".{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, 0o600, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(draft, dir_fd=folder)
        raise


def _prune(folder: int) -> None:
    """Remove the older half of the entries if they are too many, or too large together."""
    found: list[tuple[float, str, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another rank has removed it
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, entry.name, status.st_size))
    if len(found) <= MOST_ENTRIES and sum(size for *_, size in found) <= MOST_BYTES:
        return
    for _, name, _ in sorted(found)[: (len(found) + 1) // 2]:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
