"""Runs of plain torch, to which those of recoverrun are held."""

from collections.abc import Callable
from typing import TypeVar

ABORTED = "terminate called without an active exception"
ATTEMPTS = 8
HANGS = 3
"""So many attempts may not end; a script that waits by itself does so each time."""

Ran = TypeVar("Ran")


def unspoilt(
    run: Callable[[int], Ran],
    told: Callable[[Ran], str],
    hung: Callable[[Ran], bool] = lambda _: False,
) -> Ran:
    """The result of `run` for the first attempt, from 0, that torch does not spoil at its end.

    A thread of gloo's that drops its last work asks for the interpreter's lock (torch 2.13,
    `ProcessGroupGloo::runLoop`). If the interpreter is ending by then, the thread is ended within
    C++, which ends the process: under torchrun one run in six of a script that leaves right after
    its last reduction. If another thread waits for that one as it destroys the group, and holds
    the lock, both wait for ever: on a busy machine one run in twenty.
    """
    hangs = 0
    for attempt in range(ATTEMPTS):
        ran = run(attempt)
        hangs += hung(ran)
        if hangs == HANGS or not (hung(ran) or ABORTED in told(ran)):
            break
    return ran
