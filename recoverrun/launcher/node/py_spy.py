"""Stacks of a process that cannot show its own: py-spy reads them from its memory.

It also works for one that is stopped, or that the kernel does not let go. It is used where it is
installed and permitted, and nothing depends on it.
"""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

WITHIN_S = 1.0
"""It needs some 40 ms; a process that hangs is ended after that time at the latest."""


def find() -> str:
    """The path of the program, "" if there is none."""
    return shutil.which("py-spy") or ""


def leave(program: str, pid: int, path: str) -> None:
    """Write the stacks of `pid` to the file at `path`, if they can be had within the time."""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=WITHIN_S, check=True)
        Path(path).write_bytes(f"py-spy, pid {pid}\n".encode() + done.stdout)
