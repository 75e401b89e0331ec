"""Exit codes of workers, launchers and the job.

They are part of the interface: schedulers decide by them whether to try again. All nodes of a job
leave with the same code. A worker's own code passes through up to 79; above that it would be
mistaken for one of ours, so it becomes 1 and the report tells the true one.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Our own exit codes; 1-79 are the root rank's, 128+N is its signal."""

    DONE = 0
    """Anybody: it has done what it was asked to."""

    FAILED = 1
    """The job: its root rank failed so, or with a code of ours. A command: it could not be done."""

    USAGE = 2
    """Anybody: an option or an argument is wrong, or the script does not go with it."""

    AWAY = 75
    """A worker: it cannot take its place, by no fault of its own or its script's."""

    NEVER_FORMED = 80
    """The job: it never began. A launcher: the job has refused it. A command: nobody answered."""

    BELOW_MINIMUM = 81
    """The job: fewer replicas are left than it may go on with, and no restart."""

    HANG = 82
    """The job: it stood still, or a lost replica hung. A trial: its run has not ended in time."""

    DOCTOR = 83
    """`recoverrun doctor`: something would keep a job from running, or from surviving."""

    REQUEUE = 84
    """The job: it was told to end, and its snapshot is on disk; or nodes for one are missing."""

    INVARIANT = 85
    """The job: a promise was broken. `inject`, `demo` and `postmortem --verify`: they found so."""

    PARTITIONED = 86
    """A launcher: it has lost the node that coordinates, and may not go on."""

    DO_NOT_REQUEUE = 93
    """The job: every attempt ended, or would end, in the same way."""

    INTERRUPTED = 130
    """Anybody: SIGINT ended it."""

    TERMINATED = 143
    """Anybody: SIGTERM ended it."""


SIGNALLED = 128
"""A process that signal N ended has the exit code SIGNALLED + N, as in shells."""

RESERVED_FROM = 80
"""From here on a worker's own code would be mistaken for one of ours, or for a signal's."""

LEFT_OUT = frozenset({ExitCode.PARTITIONED, ExitCode.NEVER_FORMED})
"""Codes of its own with which a launcher leaves where the job goes on without its node."""

MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "the root rank failed with code 1, or with one above 79",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NEVER_FORMED: "the job never formed",
    ExitCode.BELOW_MINIMUM: "fewer replicas are left than --min-replicas",
    ExitCode.HANG: "stopped because of a hang",
    ExitCode.DOCTOR: "the doctor found an error",
    ExitCode.REQUEUE: "stopped early, start it again",
    ExitCode.INVARIANT: "an invariant does not hold",
    ExitCode.PARTITIONED: "cut off from the node that coordinates the run",
    ExitCode.DO_NOT_REQUEUE: "do not start it again",
    ExitCode.INTERRUPTED: "stopped by SIGINT",
    ExitCode.TERMINATED: "stopped by SIGTERM",
}
"""Of those with which a job or a launcher ends, as reports and docs/torchrun.md say them."""


def code_of_job(codes: Sequence[int]) -> int | None:
    """The job's exit code, by those with which its launchers left, one after another; None of none.
    The last one counts: a node may leave early. Where others have left in another way, those that
    were left out are not asked.
    """
    stayed = [code for code in codes if code not in LEFT_OUT] or codes
    return next(reversed(stayed if all(stayed) else [0]), None)


def code_for_lost(code: int) -> int:
    """The job's exit code for a lost worker's: 128 + signal, or its own from 1 to 79, else 1."""
    if code < 0:
        return SIGNALLED - code
    return code if 0 < code < RESERVED_FROM else ExitCode.FAILED
