"""A process that serves the workers of its node: it yields to them, and outlives their signals."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from rendezvous.protocol.process_title import entitle

NICE = 10


def become(role: str, *, oom_score: int) -> None:
    """Make this process such a helper. `oom_score`: added where the kernel chooses whom to end.

    The launcher that started it ends it; signals that a terminal or a scheduler sends to all
    processes of the job do not.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    entitle(role, "")
    with suppress(OSError):
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(oom_score))
