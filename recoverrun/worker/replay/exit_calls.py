"""Calls that would end this process, or its process groups, are refused, while its thread executes
code for another rank.

A script may end its process on purpose: a sample that must not be, a record that is damaged. That
is meant for the rank whose sample it is. `SystemExit` and `KeyboardInterrupt` are exceptions, which
the executor catches; what asks the system itself is replaced here, for as long as the execution
takes (`stand_ins`). Processes that the script begins meanwhile, and other threads, end as ever.
Groups that are destroyed would be this process's own, and one that is made waits for ranks that
execute nothing.
"""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import torch.distributed as dist

from recoverrun.worker.replay.stand_ins import Function, replaced

HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
"""Signals that nobody has to handle; 0 is none."""

Refuse = Callable[[str, FrameType], None]
"""Raises the error that ends the execution. Takes the harm of the call, and its caller."""


def deadly(number: int) -> bool:
    """True if this process would end, or stop, by that signal as things are."""
    if number == 0 or number in HARMLESS:
        return False
    handler: Any = signal.getsignal(number)
    if isinstance(handler, Noted):
        handler = handler.handler
    return handler in (signal.SIG_DFL, signal.default_int_handler)


def _always(*_: Any) -> bool:
    return True


def _kills_us(pid: int, number: int) -> bool:
    ours = (0, -1, os.getpid(), -os.getpgrp())
    return pid in ours and deadly(number)


def _kills_our_group(group: int, number: int) -> bool:
    return group in (0, os.getpgrp()) and deadly(number)


def _of_number(number: int) -> bool:
    return deadly(number)


def _of_thread(thread: int, number: int) -> bool:
    return deadly(number)


def _arms_alarm(seconds: float) -> bool:
    return seconds > 0 and deadly(signal.SIGALRM)


def _arms_timer(which: int, seconds: float, interval: float = 0.0) -> bool:
    return seconds > 0 and deadly(TIMERS.get(which, signal.SIGALRM))


def _lowers(kind: int, limits: tuple[int, int]) -> bool:
    """True if this process may use less than before: what others of its code need counts, too."""
    before = resource.getrlimit(kind)
    infinite = float("inf")
    return any(
        (infinite if new == resource.RLIM_INFINITY else new)
        < (infinite if old == resource.RLIM_INFINITY else old)
        for new, old in zip(limits, before, strict=True)
    )


TIMERS = {
    signal.ITIMER_REAL: signal.SIGALRM,
    signal.ITIMER_VIRTUAL: signal.SIGVTALRM,
    signal.ITIMER_PROF: signal.SIGPROF,
}

ENDS, REGROUPS = "end this process", "change this process's groups"
LIMITS = "lower this process's limits"

GROUPS = "destroy_process_group", "init_process_group", "new_group"

TABLE: tuple[tuple[ModuleType, str, Callable[..., bool], str], ...] = (
    (os, "_exit", _always, ENDS),
    (os, "abort", _always, ENDS),
    (os, "execv", _always, ENDS),
    (os, "execve", _always, ENDS),
    (os, "kill", _kills_us, ENDS),
    (os, "killpg", _kills_our_group, ENDS),
    (signal, "raise_signal", _of_number, ENDS),
    (signal, "pthread_kill", _of_thread, ENDS),
    (signal, "alarm", _arms_alarm, ENDS),
    (signal, "setitimer", _arms_timer, ENDS),
    (resource, "setrlimit", _lowers, LIMITS),
    *((dist, name, _always, REGROUPS) for name in GROUPS),
)
"""Calls that may do harm, when they would, and which."""


@contextmanager
def refused(refuse: Refuse, own: Collection[str]) -> Iterator[None]:
    """Send calls of `TABLE` in this thread of this process to `refuse`; `own` are module names."""
    table = [
        (module, name, partial(_refusing, f"{harm} by {module.__name__}.{name}", harms, refuse))
        for module, name, harms, harm in TABLE
    ]
    with replaced(table, own):
        yield


def _refusing(
    what: str, harms: Callable[..., bool], refuse: Refuse, original: Function
) -> Function:
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if harms(*args, *kwargs.values()):
            refuse(what, sys._getframe(2))
        return original(*args, **kwargs)

    return stand_in


class Noted:
    """A handler of the script's that tells `came` before it is called."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        self.came = True
        return self.handler(number, frame)


class Interrupts:
    """Tells a Ctrl-C of the user's from a `KeyboardInterrupt` that the script's code raises."""

    def __init__(self) -> None:
        self._noted: Noted | None = None  # of the last execution

    @property
    def came(self) -> bool:
        """True if there was one in the last execution, or in the one that runs."""
        return self._noted is not None and self._noted.came

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Only the main thread is ever interrupted, and may change who hears of it."""
        self._noted = None
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._noted = noted = Noted(handler)
        signal.signal(signal.SIGINT, noted)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is noted:
                signal.signal(signal.SIGINT, handler)
