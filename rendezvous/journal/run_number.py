"""The number of a run among those below one folder: which began later, whatever the clock said.

The folder has the last number, and a mark of its own: the number of a run that was copied from
elsewhere says nothing here. Two runs that begin at one moment may have the same.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

COUNTER, NUMBER = ".runs", ".number"

_MOST = 64
"""Bytes of such a file."""


def number_run(run_dir: Path, folder: Path) -> None:
    """Give the run at `run_dir` the next number of `folder`. Raises OSError."""
    mark, last = _read(folder / COUNTER)
    if not mark:
        mark, last = secrets.token_hex(8), 0
    text = f"{mark} {last + 1}"
    _write(folder / COUNTER, text)
    _write(run_dir / NUMBER, text)


def run_number(run_dir: Path, folder: Path) -> int:
    """The number of the run at `run_dir`; 0 if it has none of `folder`."""
    mark, number = _read(run_dir / NUMBER)
    return number if mark and mark == _read(folder / COUNTER)[0] else 0


def _read(path: Path) -> tuple[str, int]:
    """The mark and the number; "" where there is none."""
    text = ""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            text = os.read(fd, _MOST).decode("ascii", "replace")
        finally:
            os.close(fd)
    mark, _, number = text.partition(" ")
    digits = number.isascii() and number.isdigit()
    return (mark, int(number)) if digits else ("", 0)


def _write(path: Path, text: str) -> None:
    """Put a file with this text there in one step."""
    new = path.with_name(f"{path.name}-{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(new, flags, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    new.replace(path)
