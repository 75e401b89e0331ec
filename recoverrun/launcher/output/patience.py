"""Looking into files without waiting for a disk that stalls: by a thread, for a moment.

What a worker has left is asked for in the loop, when the worker has ended. On a disk that works it
is there in a fraction of a millisecond; on one that stalls the loop goes on without it.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from rendezvous.protocol.side_threads import begin_thread

T = TypeVar("T")


class Patience(Generic[T]):
    """Makes calls that read files. For one thread."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s` is how long one call may take."""
        self._limit_s = limit_s
        self._thread: threading.Thread | None = None

    def ask(self, call: Callable[[], T], otherwise: T) -> T:
        """The result of `call`, or `otherwise` if it takes too long. `call` raises nothing.

        While one call hangs no other one is made: they would hang as well, each for a while. Where
        there is no thread to be had, the call takes as long as it takes.
        """
        if self._thread is not None and self._thread.is_alive():
            return otherwise
        found: list[T] = []
        self._thread = begin_thread("patience", lambda: found.append(call()))
        if self._thread is None:
            return call()
        self._thread.join(self._limit_s)
        return found[0] if found else otherwise
