"""Ends of our own children that the script's handler of SIGCHLD is not called for.

The script may take each such signal for one of its own children: count them, or end where one is
gone. While our child lives, its handler is put aside. It is called afterwards if a child that is
not waited for has ended meanwhile.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unheard_ends() -> Iterator[None]:
    """A child of ours begins, ends and is waited for."""
    handler = signal.getsignal(signal.SIGCHLD)
    ours = threading.current_thread() is threading.main_thread()  # others may set no handler
    if not ours or not callable(handler):
        yield
        return
    came, before = list[int](), _ended()
    signal.signal(signal.SIGCHLD, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
        if came and (before is None or (_ended() or set()) - before):
            signal.raise_signal(signal.SIGCHLD)


def _ended() -> set[int] | None:
    """The children of this process that have ended and are not waited for; None where that cannot
    be told: the system does not list children, or no file can be opened.
    """
    try:
        lists = list(Path("/proc/self/task").glob("*/children"))
    except OSError:
        return None
    if not lists:
        return None
    pids = [pid for one in lists for pid in _read(one).split()]
    # Behind the name, which may hold anything: `pid (name) state`.
    states = {pid: _read(Path("/proc", pid, "stat")).rpartition(")")[2].strip() for pid in pids}
    return {int(pid) for pid, state in states.items() if state.startswith("Z")}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended since
        return ""
