"""Exit codes, which are part of the interface: schedulers decide by them whether to try again.

All nodes of a job leave with the same code. A worker's own code passes through up to 79; above that
it would be mistaken for one of ours, so it becomes 1 and the report tells the true one.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Our own exit codes; 1-79 are the root rank's, 128+N is its signal."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NEVER_FORMED = 80
    BELOW_MINIMUM = 81
    HANG = 82
    DOCTOR = 83
    REQUEUE = 84
    INVARIANT = 85
    PARTITIONED = 86
    DO_NOT_REQUEUE = 93
    INTERRUPTED = 130
    TERMINATED = 143


LEFT_OUT = frozenset({ExitCode.PARTITIONED, ExitCode.NEVER_FORMED})
"""Codes of its own with which a launcher leaves where the job goes on without its node."""


def code_of_job(codes: Sequence[int]) -> int | None:
    """The job's exit code, by those with which its launchers left, one after another; None of none.
    The last one counts: a node may leave early. Where others have left in another way, those that
    were left out are not asked.
    """
    stayed = [code for code in codes if code not in LEFT_OUT] or codes
    return next(reversed(stayed if all(stayed) else [0]), None)


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


class RecoverrunError(Exception):
    """An operating error: one clear sentence for the user and the code to leave with."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
