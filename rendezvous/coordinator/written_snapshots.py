"""The safe snapshot that is written to the user's disk, and when all of it is there.

Every keeper has to write the same one, so the coordinator says which. One at a time: the first that
is safe, and from then on one every WRITE_EVERY_S. Older ones are removed only when a newer one is
there as a whole, so there is always one.
"""

from collections.abc import Collection
from dataclasses import dataclass

from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Stop
from rendezvous.protocol.records import Json, Record, notice
from rendezvous.protocol.snapshot_messages import Persist, Persisted
from rendezvous.snapshots.identity import NONE, SnapshotId

WRITE_EVERY_S = 600.0

NEWER_S = 15.0
"""So long a job that is to end trains on for one snapshot more."""

DRAIN_S = 300.0
"""So long it waits for a disk."""

DRAINED = "{reason}: the snapshot of step {step:,} is on the disk, start the job again"

LATE_S = 1800.0
"""A writing that nobody has told the end of is given up after that."""

FAILED = "the snapshot of step {} is not on the disk: {}"


@dataclass(slots=True)
class _Drain:
    """The job is to end."""

    before: SnapshotId  # safe as that was known
    reason: str
    began_at: float
    failed: str = ""

    def awaits(self, found: SnapshotId, now: float) -> bool:
        """True as long as something newer than `found` may still come."""
        return found <= self.before and now < self.began_at + NEWER_S


class WrittenSnapshots:
    """The written snapshots of one job, at the coordinator."""

    def __init__(self) -> None:
        self.newest = NONE  # on the disk as a whole
        self._keep = 0, 0  # its name there
        self._order: Persist | None = None  # under way
        self._began_at = 0.0
        self._lacking: set[str] = set()  # launchers that have not told the end of it
        self._nbytes = 0
        self._next_at = 0.0
        self._failed = ""  # as last said
        self._drain: _Drain | None = None

    def write(
        self,
        safe: SnapshotId,
        launchers: Collection[str],
        start: int,
        now: float,
    ) -> Persist | None:
        """The order to launchers now that `safe` can be had; `start` is the number of this attempt
        among all that have written there.
        """
        if safe in (NONE, self.newest):
            return None
        if self._drain is not None and self._drain.awaits(safe, now):
            return None  # a newer one is under way, and only one is written at a time
        if self._order is not None and now < self._began_at + LATE_S:
            return None
        if self._drain is None and now < self._next_at:
            return None
        self._next_at, self._began_at = now + WRITE_EVERY_S, now
        self._lacking, self._nbytes = set(launchers), 0
        self._order = Persist(attempt=safe.attempt, step=safe.step, start=start, keep=self._keep)
        return self._order

    def hear(self, launcher: str, told: Persisted, now: float) -> list[Record]:
        """A node has written its parts, or could not."""
        order = self._order
        if order is None or _name(told) != _name(order) or launcher not in self._lacking:
            return []
        if told.failed:
            self._order = None
            if self._drain is not None:
                self._drain.failed = told.failed
            words = FAILED.format(told.step, told.failed)
            said, self._failed = self._failed, told.failed
            return [notice(words)] if said != told.failed else []
        self._lacking.discard(launcher)
        self._nbytes += told.nbytes
        if self._lacking:
            return []
        self._order, self._failed = None, ""
        self.newest, self._keep = SnapshotId(order.attempt, order.step), _name(order)
        fields: dict[str, Json] = {
            "attempt": order.attempt, "step": order.step, "bytes": self._nbytes,
            "ms": round(1000 * (now - self._began_at), 3),
        }  # fmt: skip
        return [Record("snapshot.persisted", f"step {order.step} is on the disk", fields)]

    def drain(self, safe: SnapshotId, reason: str, now: float) -> bool:
        """The job is to end, with one snapshot more. False if that is known."""
        if self._drain is not None:
            return False
        self._drain = _Drain(safe, reason, now)
        return True

    def drained(self, now: float) -> Stop | None:
        """The end of a job that was to end; None as long as something is under way for it."""
        drain = self._drain
        if drain is None:
            return None
        over = bool(drain.failed) or now >= drain.began_at + DRAIN_S
        if not over and (drain.awaits(self.newest, now) or self._order is not None):
            return None
        if self.newest == NONE:
            why = f", {drain.failed}" if drain.failed else ""
            reason = f"{drain.reason}: no snapshot is on the disk{why}"
            return Stop(exit_code=ExitCode.TERMINATED, reason=reason, root_rank=-1)
        reason = DRAINED.format(reason=drain.reason, step=self.newest.step)
        return Stop(exit_code=ExitCode.REQUEUE, reason=reason, root_rank=-1)

    def lose(self, launcher: str) -> None:
        """The node of this launcher is gone: what it was writing may be there in part."""
        if launcher in self._lacking:
            self._order = None


def _name(one: Persist | Persisted) -> tuple[int, int]:
    """The name of a snapshot on the disk."""
    return one.start, one.step
