"""The stacks that launchers have left of ranks that stood still, from the run directory.

The first line of each file names its run: several runs may have had the directory, one after
another, and their clocks tell nothing, as those may have been set.
"""

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


def heading(run: str) -> str:
    """The first line of a file with stacks of the run of this name."""
    return f"run {run}\n"


def hang_stacks(*run_dirs: Path, run: str) -> tuple[HangStack, ...]:
    """The stacks of all hangs of `run` that were kept, the newest hang first; at most `FILES`."""
    found = [stack for place in run_dirs for stack in _below(place / "hangs", heading(run))]
    found.sort(key=lambda stack: (-stack.hang, stack.rank))
    return tuple(found[:FILES])


def _below(folder: Path, first: str) -> Iterator[HangStack]:
    for path in sorted(folder.glob("*/rank*.stack")):
        match, hang = _NAME.fullmatch(path.name), path.parent.name
        if match is None or not hang.isdecimal() or len(hang) > 9:
            continue
        text = read_text(path, MOST_BYTES)
        if text.startswith(first) and text != first:
            text = _script_first(text.removeprefix(first))
            yield HangStack(hang=int(hang), rank=int(match[1]), text=text, path=path)


def _script_first(text: str) -> str:
    """The text with the thread last that wrote it: Python puts that one first."""
    head, *threads = _THREAD.split(text)
    ends = [thread.rstrip("\n") for thread in sorted(threads, key=lambda one: _DUMPER in one)]
    return head + "\n\n".join(ends) + "\n" if threads else text


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
