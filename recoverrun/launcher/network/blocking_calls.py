"""Calls that may block for seconds, kept out of the launcher's loop: by one thread, in order.

Names are looked up, files of a network and services over HTTP are read with calls that know no
poll. The loop hands such a call over and is woken with what it returned. Every call bounds its own
time where it can; one that hangs in the kernel holds up those behind it, and nobody else. No
launcher waits for the thread when it leaves.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Generic, TypeVar

from rendezvous.protocol.side_threads import begin_thread
from rendezvous.transport.station import Station

T = TypeVar("T")

WAITING = 16
"""Calls that may wait. What is asked of others is repeated, so the rest is refused."""


class BlockingCalls(Generic[T]):
    """Each call returns a T, and raises nothing."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        station.watch(self._fd)
        self._asked: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._done: deque[T] = deque()
        self._lock = threading.Lock()
        self._open = True
        self._thread: threading.Thread | None = None

    def ask(self, call: Callable[[], T]) -> bool:
        """Have it carried out. False if too many wait already, or there is no thread for it."""
        if self._asked.qsize() >= WAITING:
            return False
        if self._thread is None:
            # A daemon: a file system that hangs must not keep the launcher from leaving.
            self._thread = begin_thread("blocking-calls", self._run)
            if self._thread is None:
                return False
        self._asked.put(call)
        return True

    def take(self, ready: Collection[object]) -> list[T]:
        """The results that are there, if it is this one that is `ready`."""
        if self._fd not in ready:
            return []
        os.eventfd_read(self._fd)
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def close(self) -> None:
        self._asked.put(None)
        with self._lock:
            self._open = False
            self._station.unwatch(self._fd)
            os.close(self._fd)

    def _run(self) -> None:
        while (call := self._asked.get()) is not None:
            self._done.append(call())
            with self._lock:
                if not self._open:
                    return
                os.eventfd_write(self._fd, 1)
