"""The time that a run has had: on a busy machine less than what the clock says.

A run that hangs waits for something else than a CPU, or has one. So each second counts but for the
part in which the thread of the run that had to wait longest for a CPU waited for it. A twentieth
counts in any case: a bound is a bound.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_AGAIN_S = 0.5
LEAST = 0.05

Delays = dict[int, float]
"""Seconds for which each thread has waited for a CPU."""


class FairTime:
    """The seconds that a process and those below it have had since this was made."""

    def __init__(
        self,
        pid: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        delays: Callable[[int], Delays] | None = None,
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._read = delays or delays_below
        self._had_s = 0.0
        self._at, self._delays = clock(), self._read(pid)

    def seconds(self) -> float:
        """A little less than what it has had: who asks at once again is told the same."""
        now = self._clock()
        past = now - self._at
        if past >= LOOK_AGAIN_S:
            delays = self._read(self._pid)
            waited = max(
                (delay - self._delays.get(tid, 0.0) for tid, delay in delays.items()), default=0.0
            )
            self._had_s += max(past - waited, LEAST * past)
            self._at, self._delays = now, delays
        return self._had_s


def delays_below(pid: int) -> Delays:
    """Of all threads of this process and of those below it."""
    return dict(_of_process(pid))


def _of_process(pid: int) -> Iterator[tuple[int, float]]:
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            _, waited_ns, _ = (thread / "schedstat").read_text().split()
            children = (thread / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        yield int(thread.name), int(waited_ns) / 1e9
        for child in children:
            yield from _of_process(int(child))
