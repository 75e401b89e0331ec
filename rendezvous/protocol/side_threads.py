"""Threads beside a loop, which has to go on where the system gives none.

A container may bound its processes, threads included (`pids.max`, `ulimit -u`), and a script of the
user's may use them all up. Whoever asks for a thread says what it does without one.
"""

from collections.abc import Callable
from threading import Thread


def begin_thread(name: str, target: Callable[..., object], *args: object) -> Thread | None:
    """Start a thread that no process waits for at its end; None if the system gives none."""
    thread = Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python raises it for nothing else here: the thread is new.
        return None
    return thread
