"""Signals that this process receives, as bytes in a pipe: the loop reads them like any message."""

import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType

STOPPERS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that end the job; all others that are handled are only passed on."""

MESSENGERS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers warn with: they never end a launcher, asked for or not."""


class SignalInbox:
    """Collects the given signals from `hold` until `close`. Main thread only."""

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._numbers = numbers
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former_fd: int | None = None  # until `hold`
        self._former: dict[
            signal.Signals, Callable[[int, FrameType | None], object] | int | None
        ] = {}

    def hold(self) -> None:
        """Collect from now on; the second call does nothing."""
        if self._former_fd is not None:
            return
        # A full pipe loses a repetition of what is already waiting there: no reason to warn.
        self._former_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in filter(_wanted, self._numbers):
            self._former[number] = signal.signal(number, _ignore)

    def take(self) -> list[signal.Signals]:
        """The signals since the last call, in their order."""
        try:
            return [signal.Signals(number) for number in os.read(self.fd, 4096)]
        except BlockingIOError:
            return []

    def stopper(self) -> signal.Signals | None:
        """The first signal since the last call that ends a job; the others are forgotten."""
        return next((number for number in self.take() if number in STOPPERS), None)

    def close(self) -> None:
        """Give every signal back to whoever had it before."""
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._former_fd is not None:
            signal.set_wakeup_fd(self._former_fd)
        os.close(self.fd)
        os.close(self._write_fd)


def _wanted(number: signal.Signals) -> bool:
    """False of SIGHUP if it is ignored: whoever started us so (nohup) wants it to stay so."""
    return number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Python needs a handler to be there; the byte in the pipe is what counts."""
