"""Runs of plain torch, to which those of recoverrun are held."""

from collections.abc import Callable
from typing import TypeVar

ABORTED = "terminate called without an active exception"
ATTEMPTS = 8

Ran = TypeVar("Ran")


def unaborted(run: Callable[[int], Ran], told: Callable[[Ran], str]) -> Ran:
    """What `run` returns for the first attempt, from 0, in which no process aborts as it leaves.

    A thread of gloo's that drops its last work asks for the interpreter's lock; if the interpreter
    is ending by then, the thread is ended within C++, which ends the process (torch 2.13,
    `ProcessGroupGloo::runLoop`). Under torchrun that is one run in six of a script that leaves
    right after its last reduction.
    """
    for attempt in range(ATTEMPTS):
        ran = run(attempt)
        if ABORTED not in told(ran):
            break
    return ran
