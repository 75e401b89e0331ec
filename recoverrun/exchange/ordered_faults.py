"""Faults that are ordered for the time in which this node makes parity (`protocol.fault_schedule`).

Only `recoverrun inject`, `recoverrun demo` and tests order any.
"""

import os
import signal

from rendezvous.bays.node_processes import end_keeper, end_worker
from rendezvous.protocol.fault_schedule import ScheduledKill, parse


class OrderedFaults:
    def __init__(self, schedule: str) -> None:
        """Read the faults of this node. Raises ScheduleError."""
        self._kills = parse(schedule)

    def amid(self, step: int) -> None:
        """Half of the parity of the snapshot of this step is made here: each strikes once."""
        due = [kill for kill in self._kills if kill.step == step]
        self._kills = tuple(kill for kill in self._kills if kill not in due)
        for kill in due:
            _strike(kill, os.getppid())


def _strike(kill: ScheduledKill, launcher: int) -> None:
    if kill.keeper:
        end_keeper(launcher)
    elif kill.node:
        os.kill(launcher, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        end_worker(launcher, kill.rank)
