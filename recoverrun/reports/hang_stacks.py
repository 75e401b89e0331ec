"""The stacks that launchers have left of ranks that stood still, from the run directory."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 64 << 10
"""Of one file."""

FILES = 64

_NAME = re.compile(r"rank(\d{1,7})\.stack")
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
_DUMPER = "worker/step/stack_dump.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class HangStack:
    """The stacks of one rank in one hang: text from the run, the threads of its script first."""

    hang: int
    rank: int
    text: str
    path: Path


def hang_stacks(*run_dirs: Path, since: float = 0.0) -> tuple[HangStack, ...]:
    """The stacks of all hangs that were kept, the newest hang first; at most `FILES`.

    Those from before the instant `since` are of an earlier run in the same directory.
    """
    found = [stack for place in run_dirs for stack in _below(place / "hangs", since)]
    found.sort(key=lambda stack: (-stack.hang, stack.rank))
    return tuple(found[:FILES])


def _below(folder: Path, since: float) -> Iterator[HangStack]:
    for path in sorted(folder.glob("*/rank*.stack")):
        match, hang = _NAME.fullmatch(path.name), path.parent.name
        if match is None or not hang.isdecimal() or len(hang) > 9:
            continue
        if _written_at(path) < since:
            continue
        text = read_text(path, MOST_BYTES)
        if text:
            text = _script_first(text)
            yield HangStack(hang=int(hang), rank=int(match[1]), text=text, path=path)


def _script_first(text: str) -> str:
    """The text with the thread last that wrote it: Python puts that one first."""
    head, *threads = _THREAD.split(text)
    ends = [thread.rstrip("\n") for thread in sorted(threads, key=lambda one: _DUMPER in one)]
    return head + "\n\n".join(ends) + "\n" if threads else text


def _written_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def read_text(path: Path, most: int, *, tail: bool = False) -> str:
    """The first `most` bytes of a regular file, or the last; "" if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return ""
        begin = max(0, facts.st_size - most) if tail else 0
        return os.pread(fd, most, begin).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
