"""A process that cannot take a lost rank's place ends: others go on making up for it."""

import os
from typing import Never

from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.arrival_messages import REFUSE_RETURN
from rendezvous.protocol.exit_codes import ExitCode

NEVER = "a lost replica does not come back: {}"
MISSES = "this process does not take part: {}"


def leave(worker: WorkerState, reason: str, *, again: bool = False) -> Never:
    """End this process, and say why. Unless another process of this rank may do better (`again`),
    none is started any more.
    """
    if again:
        worker.reporter.notice(MISSES.format(reason))
    else:
        worker.reporter.notice(NEVER.format(reason), REFUSE_RETURN)
    worker.link.close()
    os._exit(ExitCode.AWAY)
