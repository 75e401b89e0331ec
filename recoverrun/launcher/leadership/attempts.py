"""The count of restarts of all ranks, and the ends that count.

An attempt that ends because nodes come or go does not count. Neither does one that ends by a loss
before recovery could help: all that is lost is the beginning. But a job that never comes beyond it
is not started for ever.
"""

from recoverrun.launcher.leadership.next_attempt import NextAttempt
from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.protocol.exit_codes import SIGNALLED
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Stop
from rendezvous.protocol.records import Json, Record

EARLY_RESTARTS = 3
"""For a loss before recovery can help, which do not count."""

EARLY = "{}, before the first step was over"


class Attempts:
    def __init__(self, most: int) -> None:
        self.most = most  # restarts that count
        self.number = 0  # of the present attempt
        self.restarts = 0  # those that count
        self.ends: list[str] = []  # how those attempts ended that count, or would
        self._early = 0  # restarts for a loss before recovery could help

    def adopt(self, start: Start) -> None:
        """Another launcher has begun the present one."""
        self.number, self.restarts = start.attempt, start.restarts

    def begin(self, *, counts: bool) -> None:
        """The next one begins."""
        self.number += 1
        self.restarts += counts

    def record(self, reason: str, root_rank: int) -> Record:
        """The journal's line of the one that begins."""
        fields: dict[str, Json] = {
            "attempt": self.number, "restarts": self.restarts, "of": self.most,
            "root_rank": root_rank,
        }  # fmt: skip
        return Record("job.restart", reason, fields)

    def judge(
        self, stop: Stop, job: Coordinator | None, *, enough: bool, changing: bool
    ) -> NextAttempt | None:
        """The next attempt where `job` wants to stop; None: that is the end.

        `enough`: nodes are left for another attempt. `changing`: it is one of them that is gone.
        """
        if changing and enough:
            return NextAttempt(stop.reason, counts=False)
        if enough and is_early(stop, job) and self._early < EARLY_RESTARTS:
            self._early += 1
            return NextAttempt(EARLY.format(stop.reason), counts=False)
        self.ends.append(stop.reason)
        return NextAttempt(stop.reason, counts=True) if self.restarts < self.most else None


def is_early(stop: Stop, job: Coordinator | None) -> bool:
    """True if recovery was about to begin, and what ended that was no error of a script.

    A script that has ended on some rank is not run again.
    """
    starting = job is not None and job.starting and not job.members.finished
    return starting and (stop.exit_code > SIGNALLED or stop.root_rank < 0)


def survives(job: Coordinator, ranks: range) -> bool:
    """True if enough replicas would be left without these ranks."""
    layout = job.members.layout
    if layout is None or not job.protected or job.stopped is not None:
        return False
    left = [slot for slot in job.members.live if not set(layout.replicas[slot]) & set(ranks)]
    return len(left) >= job.min_replicas
