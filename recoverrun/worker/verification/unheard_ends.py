"""Ends of our own children that the script's handler of SIGCHLD is not called for.

The script may take each such signal for one of its own children: count them, or end where one is
gone. While our child lives, its handler is put aside. It is called afterwards if a child that is
not waited for has ended meanwhile.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unheard_ends() -> Iterator[None]:
    """A child of ours begins, ends and is waited for."""
    handler = signal.getsignal(signal.SIGCHLD)
    ours = threading.current_thread() is threading.main_thread()  # others may set no handler
    if not ours or not callable(handler):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
        if came and _another_ended():
            signal.raise_signal(signal.SIGCHLD)


def _another_ended() -> bool:
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return ended is not None
