"""Trials in a forked child that hold training up for a while, and then go on beside it.

The child shares its memory with this process until one of them writes: what training writes beside
it is copied, so it lives no longer than it was given. A script with a handler of its own for the
ends of children would hear of this one: it waits for all of the trial. That of torch's loaders
looks after their worker processes alone (torch/utils/data/_utils/signal_handling.py).
"""

import inspect
import select
import signal
import socket
import time
from collections.abc import Callable

from recoverrun.worker.verification import forked_child
from recoverrun.worker.verification.forked_child import ENDED, LATE, ChildFailed, ChildLate, Plain

HOLD_S = 1.0
LOADERS = "torch.utils.data._utils.signal_handling"


class HeldTrials:
    """Trials of one process, one after another."""

    def __init__(self, hold_s: float | None) -> None:
        """Each holds this process up for `hold_s`; None: until it is over."""
        self._hold_s = hold_s
        self._child: tuple[int, socket.socket] | None = None
        self._within_s = self._until = 0.0

    def run(self, work: Callable[[], Plain], within_s: float) -> Plain | None:
        """The result of `work`, which may take so long; None if that is not known yet: `answer`
        tells later. Raises ChildFailed.
        """
        if self._hold_s is None or _script_hears_of_ends():
            return forked_child.run(work, within_s)
        assert self._child is None, "one trial at a time"
        self._within_s, self._until = within_s, time.monotonic() + within_s
        self._child = forked_child.forked(lambda _: _bounded(work, within_s))
        return self.answer(self._hold_s)

    def answer(self, wait_s: float = 0.0) -> Plain | None:
        """The result of the work under way; None if it goes on. Raises ChildFailed."""
        assert self._child is not None, "a trial is under way"
        pid, line = self._child
        poll = select.poll()
        poll.register(line, select.POLLIN | select.POLLHUP)
        left_s = max(0.0, self._until - time.monotonic())
        if not poll.poll(1000 * min(wait_s, left_s)) and wait_s < left_s:
            return None
        try:
            said = forked_child.heard(line.fileno(), self._require_time)
        except ConnectionError:
            said = None
        finally:
            self._child = None
            forked_child.end(pid)
            line.close()
        if said is None and time.monotonic() < self._until:
            raise ChildFailed(ENDED)
        if said is None:
            raise ChildLate(LATE.format(self._within_s))
        return said

    def _require_time(self) -> None:
        """Called before each part of the answer: one that has begun comes at once."""
        assert self._child is not None, "a trial is under way"
        poll = select.poll()
        poll.register(self._child[1], select.POLLIN | select.POLLHUP)
        if not poll.poll(1000 * max(0.0, self._until - time.monotonic())):
            raise ChildLate(LATE.format(self._within_s))


def _script_hears_of_ends() -> bool:
    """True if the script has a handler for the ends of children, also one below torch's own."""
    handler = signal.getsignal(signal.SIGCHLD)
    while inspect.isfunction(handler) and handler.__module__ == LOADERS:
        handler = inspect.getclosurevars(handler).nonlocals.get("previous_handler")
    return callable(handler)


def _bounded(work: Callable[[], Plain], within_s: float) -> Plain:
    """In the child, which nobody may ask any more."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, within_s)
    return work()
