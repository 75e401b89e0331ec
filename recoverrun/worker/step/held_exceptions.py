"""The script's signal handlers, while the end of a backward is ours.

torch reduces gradients in C++, so what a handler raises comes behind the backward. Our reduction is
Python, where it would leave a transaction half done. A handler runs at once all the same; what it
raises comes once the backward is whole, unless it ends the job. While code is executed for another
rank, the script's variables are that rank's: a handler that writes `stop = True` would write it
there. It is called once the backward is whole, and finds its own. Whoever waits for ranks that are
gone asks for both before.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

TIMERS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
"""Code that is executed for another rank may set them itself, and wait for what they raise."""

ENDS = (signal.SIGINT, signal.SIGTERM)
"""A Ctrl-C and the stop of a job end the script, whoever else is gone by then."""


class HeldExceptions:
    """Around what must not be left half done; may be entered again within. Nothing is held in other
    threads than the main one, where no handler runs.
    """

    def __init__(self) -> None:
        self.acting: Callable[[], bool] = lambda: False
        """True while code is executed for another rank."""
        self._depth = 0
        self._held: BaseException | None = None
        self._postponed: list[tuple[Callable[[int, FrameType | None], Any], int]] = []

    def __enter__(self) -> None:
        if _runs_handlers():
            self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _runs_handlers():
            self._depth -= 1
            if not self._depth:
                self.let_go()

    def let_go(self) -> None:
        """Call the handlers that were postponed, and raise what is held, if anything is. Other
        threads than the main one may wait, too.
        """
        if not _runs_handlers():
            return
        while self._postponed and not self.acting():
            handler, number = self._postponed.pop(0)
            try:
                handler(number, sys._getframe(1))
            except BaseException as error:  # also SystemExit: the others are called, too
                self._held = self._held or error
        held, self._held = self._held, None
        if held is not None:
            raise held

    def postpones(self, number: int, handler: Callable[[int, FrameType | None], Any]) -> bool:
        """True if a handler is called later, as the variables are those of another rank."""
        if not self._depth or number in TIMERS or not self.acting():
            return False
        self._postponed.append((handler, number))
        return True

    def takes(self, number: int, error: BaseException) -> bool:
        """True if what the handler of a signal raised is held; the first one counts."""
        if not self._depth or number in ENDS or (number in TIMERS and self.acting()):
            return False
        self._held = self._held or error
        return True


def _runs_handlers() -> bool:
    return threading.current_thread() is threading.main_thread()


HELD = HeldExceptions()


class Handler:
    """A signal handler of the script's."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if HELD.postpones(number, self.handler):
            return None
        try:
            return self.handler(number, frame)
        except BaseException as error:  # also SystemExit: it is the script's, and is raised later
            if not HELD.takes(number, error):
                raise
