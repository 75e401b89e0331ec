"""Removes what launchers have left in a run directory, and nothing else that lies in it.

A launcher holds a lock on its run directory for as long as it lives. Whoever removes one takes the
lock for itself first, so that a run that lives, or begins there now, keeps its files.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from recoverrun.launcher.output.run_claim import CLAIMS
from recoverrun.launcher.output.run_dir import point
from rendezvous.journal.run_number import NUMBER, run_number

OURS = ("events.*.jsonl", "events.log", "error.*.json", "logs", "hangs", CLAIMS, NUMBER)
"""The things that launchers and companions write there. A directory that a user has named may hold
much else.
"""


def hold(path: Path) -> int:
    """Say that a launcher writes to this directory; -1 where the file system has no locks."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def is_held(path: Path) -> bool:
    """True if a launcher on this machine writes to this directory."""
    fd = _taken(path)
    if fd < 0:
        return True
    os.close(fd)
    return False


def remove_run(path: Path) -> bool:
    """Remove a run; False if a launcher holds it. Other files stay, and the directory with them."""
    fd = _taken(path)
    if fd < 0:
        return False
    try:
        for found in (found for pattern in OURS for found in path.glob(pattern)):
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found, ignore_errors=True)
            else:
                found.unlink(missing_ok=True)
        with suppress(OSError):
            path.rmdir()
    finally:
        os.close(fd)
    _tidy(path.parent)
    return True


def _taken(path: Path) -> int:
    """A descriptor with the lock for us alone, -1 if somebody else has it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _tidy(parent: Path) -> None:
    """Have `latest` lead to the newest run that is left, or to none."""
    link = parent / "latest"
    if not link.is_symlink() or link.exists():
        return
    left = [
        (run_number(path, parent.parent), path.name) for path in parent.iterdir() if path.is_dir()
    ]
    if left:
        point(link, max(left)[1])
        return
    link.unlink()
    with suppress(OSError):
        parent.rmdir()
