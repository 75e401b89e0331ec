"""The time limits of code that is executed for another rank, and what follows where they are
exceeded.

A sample may make whoever looks at it wait for ever: for a lock, for a thread that another rank has.
The control thread looks at the clock. First it interrupts the script's thread by a signal whose
handler leaves the execution, which ends any wait of Python's own (PEP 475). Where that does not
help, as within a library or in the midst of a backward, this process cannot be saved: it is let go,
and its replica is a loss like any other.

An execution that keeps Python's global lock cannot be seen from here.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from recoverrun.worker.step import stack_dump

LEAST_S = 30.0
TIMES = 20.0
"""An execution may take so many times as long as the longest microbatch of this run so far."""

SERVING_LEAST_S = 120.0
"""Finding a lost rank's place in its data may take as long as reading it again (`loader_clone`)."""

GRACE_S = 5.0
"""An execution that was interrupted ends within this time, or not at all."""

AGAIN_S = 1.0
"""A script may swallow what interrupts it, and go on to wait somewhere else."""

MATES_S = 15.0
"""An execution that waits for a shard mate is let go so much later than one that waits for nobody:
the mate may have begun later, has a limit of its own, and tells as it ends why it does.
"""

Step = Literal["wait", "interrupt", "let go"]


def limit_s(longest_s: float, least_s: float = LEAST_S) -> float:
    """Seconds that an execution may take where a microbatch of this run takes up to `longest_s`."""
    return max(least_s, TIMES * longest_s)


def next_step(over_s: float, *, interruptible: bool, for_mates: bool) -> Step:
    """The next measure against an execution that has taken `over_s` longer than it may.

    `for_mates`: it waits for others of its replica.
    """
    if over_s < 0:
        return "wait"
    within_s = GRACE_S * interruptible + MATES_S * for_mates
    if over_s >= within_s:
        return "let go"
    return "interrupt" if interruptible else "wait"


@dataclass(slots=True)
class LimitedExecution:
    """One execution."""

    thread: int
    began_at: float
    limit_s: float
    interruptible: bool
    asked_at: float = float("-inf")


class ExecutionTimer:
    """Watches what the script's thread executes; `look` is the control thread's."""

    def __init__(self, let_go: Callable[[int, float], None]) -> None:
        """`let_go` ends this process: its thread has not ended within the limit, nor can it."""
        self._let_go = let_go
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._watch: LimitedExecution | None = None
        self._interrupted: Callable[[FrameType | None, float], None] | None = None
        self._signal = 0  # of ours, once it is needed

    @contextmanager
    def within(
        self, limit_s: float, interrupted: Callable[[FrameType | None, float], None]
    ) -> Iterator[None]:
        """Around what may take `limit_s`; `interrupted` raises what ends it, where it stands then.

        In a forked child nobody looks.
        """
        if os.getpid() != self._pid:
            yield
            return
        thread = threading.get_ident()
        heard = thread == threading.main_thread().ident and self._can_interrupt()
        watch = LimitedExecution(thread, time.monotonic(), limit_s, heard)
        try:
            with self._lock:
                self._watch = watch
            self._interrupted = interrupted
            yield
        finally:
            try:
                self._over()
            finally:
                self._over()  # the handler may have left the first one, but not both: see AGAIN_S

    def _over(self) -> None:
        self._interrupted = None  # first: from here on the handler raises nothing
        with self._lock:
            self._watch = None

    def too_late_to_interrupt(self) -> None:
        """A backward has begun: what leaves it halfway leaves half a gradient."""
        watch = self._watch
        if watch is not None:
            watch.interruptible = False

    def look(self) -> None:
        """Interrupt or let go what takes too long."""
        with self._lock:
            watch, now = self._watch, time.monotonic()
            if watch is None:
                return
            over_s = now - watch.began_at - watch.limit_s
            for_mates = over_s >= 0 and stack_dump.waits_for_others(watch.thread)
            step = next_step(over_s, interruptible=watch.interruptible, for_mates=for_mates)
            if step == "interrupt" and now >= watch.asked_at + AGAIN_S:
                watch.asked_at = now
                signal.pthread_kill(watch.thread, self._signal)
            if step == "let go":  # it cannot end meanwhile
                self._let_go(watch.thread, watch.limit_s)

    def _can_interrupt(self) -> bool:
        """True if there is a signal that nobody uses: taken as a lost slot is first executed."""
        if self._signal:
            return signal.getsignal(self._signal) == self._interrupt
        for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._interrupt)
                self._signal = number
                return True
        return False

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        watch, interrupted = self._watch, self._interrupted
        if watch is not None and watch.interruptible and interrupted is not None:
            interrupted(frame, watch.limit_s)
