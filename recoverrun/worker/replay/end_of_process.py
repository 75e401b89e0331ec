"""Code that is executed for another rank leaves nothing to be done at the end of this process.

Functions that the script registers with `atexit`, and threads that are no daemons, belong to the
rank whose code that is. It is gone, and how it would have ended is nobody's to repeat: this process
calls none of the functions as it ends, and waits for none of the threads. Of libraries both stay as
they are: what they register serves all that they do in this process, and they do it once.
"""

import atexit
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from recoverrun.worker.replay.stand_ins import Function, replaced

CALLER = 2
"""Frames from a stand-in to who calls it: `stand_ins` stands between."""


@contextmanager
def nothing_left(own: Collection[str]) -> Iterator[None]:
    """Within, calls by the script's modules `own` leave nothing for the end of this process."""
    table = (
        (atexit, "register", partial(_dropping, own)),
        (threading.Thread, "start", partial(_as_daemon, own)),
    )
    with replaced(table, own):
        yield


def _by(own: Collection[str]) -> bool:
    """True if the script's own code has called the function that asks."""
    return sys._getframe(CALLER + 1).f_globals.get("__name__") in own


def _dropping(own: Collection[str], register: Function) -> Function:
    def stand_in(function: Function, /, *args: Any, **kwargs: Any) -> Function:
        if not _by(own):
            register(function, *args, **kwargs)
        return function

    return stand_in


def _as_daemon(own: Collection[str], start: Function) -> Function:
    def stand_in(thread: threading.Thread) -> None:
        if _by(own) and not thread.ident:  # else it says itself that it cannot be started again
            thread.daemon = True
        start(thread)

    return stand_in
