"""The queue from a loop that must not wait to a thread that may.

`put` hands a thing over and returns at once. The thread takes things in their order, each as soon
as it has done with the one before: nothing is delayed to save calls, so what was handed over before
a launcher is killed is with the kernel some microseconds later. A file that stalls holds up the
thread alone. Then the queue fills, up to a bound, and what comes afterwards is refused: who handed
it over counts it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rendezvous.protocol.side_threads import begin_thread

T = TypeVar("T")

ALWAYS_MOST = 1000
"""Things that are put into a full queue because they matter most."""


@dataclass(frozen=True, slots=True)
class _Piece(Generic[T]):
    thing: T
    size: int


class Spool(Generic[T]):
    """Carries things of one kind. `put`, `flush` and `close` are for one thread."""

    def __init__(self, name: str, take: Callable[[T], None], *, most: int, most_bytes: int) -> None:
        """`take` is called in the thread `name`; it may block, and raises nothing."""
        self._name = name
        self._take = take
        self._most = most
        self._most_bytes = most_bytes
        self._pieces: deque[_Piece[T]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._took_at: float | None = None  # the one that is being written

    def put(self, thing: T, size: int = 0, *, always: bool = False) -> bool:
        """Have it written. False if the queue is full, or closed."""
        with self._changed:
            room = len(self._pieces) < self._most and self._bytes + size <= self._most_bytes
            always = always and len(self._pieces) < self._most + ALWAYS_MOST
            if self._closed or not (room or always):
                return False
            self._pieces.append(_Piece(thing, size))
            self._bytes += size
            self._changed.notify_all()
        if self._thread is None:
            # A daemon: a file system that hangs must not keep the launcher from leaving.
            # Where there is none to be had, the next thing asks for it again.
            self._thread = begin_thread(self._name, self._run)
        return True

    @property
    def waiting(self) -> int:
        """Things that are not written yet."""
        return len(self._pieces)

    def stalled_s(self, now: float) -> float:
        """The time for which the thread has been writing; 0 if it is not."""
        took_at = self._took_at
        return 0.0 if took_at is None else max(0.0, now - took_at)

    def flush(self, within_s: float) -> bool:
        """Wait until all is written, `within_s` at most. True if it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pieces, within_s)

    def close(self, within_s: float) -> int:
        """Take nothing more, and wait as `flush` does. Returns how many things are left.

        If there never was a thread, they are written here.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is None:
            self._run()
        self.flush(within_s)
        return self.waiting

    def _run(self) -> None:
        while (piece := self._next()) is not None:
            self._took_at = time.monotonic()
            self._take(piece.thing)
            self._took_at = None
            with self._changed:
                self._pieces.popleft()
                self._bytes -= piece.size
                self._changed.notify_all()

    def _next(self) -> _Piece[T] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._closed)
            return self._pieces[0] if self._pieces else None
