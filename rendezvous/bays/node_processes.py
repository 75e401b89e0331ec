"""The process of this node that an ordered fault strikes: a child of its launcher, known by the
name that it gives itself (`protocol.process_title`).
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def end_keeper(launcher: int, proc: Path = Path("/proc")) -> None:
    """End the keeper of this launcher by SIGKILL. Raises LookupError if there is none."""
    os.kill(_child(launcher, b"keeper:", proc), signal.SIGKILL)


def end_worker(launcher: int, rank: int, proc: Path = Path("/proc")) -> None:
    """The same of the process of a rank."""
    os.kill(_child(launcher, b"r%d:" % rank, proc), signal.SIGKILL)


def _child(launcher: int, name: bytes, proc: Path) -> int:
    for pid in _children(launcher, proc):
        with suppress(OSError):  # it has ended
            if (proc / pid / "comm").read_bytes().startswith(name):
                return int(pid)
    raise LookupError(f"the launcher has no process {name.decode()}")


def _children(launcher: int, proc: Path) -> Iterator[str]:
    for thread in sorted((proc / str(launcher) / "task").iterdir()):
        with suppress(OSError):  # the thread has ended
            yield from (thread / "children").read_text().split()
