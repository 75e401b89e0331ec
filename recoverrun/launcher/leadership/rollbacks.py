"""At the coordinator host: what launchers and workers say of snapshots, and what is done about it.

A loss that leaves no replica ends the attempt. Where a snapshot can be had, all ranks start again
from it, and that is no failure: it does not count towards --max-restarts.
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from recoverrun.errors import ExitCode
from recoverrun.launcher.leadership.attempts import Again
from recoverrun.launcher.leadership.launchers import AttemptMembers
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.coordinator.losses import SIGNALLED
from rendezvous.protocol.effects import Record
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.messages import Exited, Message, Stop
from rendezvous.protocol.snapshot_messages import Drain, Holding, Persisted, Restored

if TYPE_CHECKING:
    from rendezvous.coordinator.snapshots import SnapshotBook, ToKeepers  # what only snapshots need
    from rendezvous.coordinator.written_snapshots import WrittenSnapshots

OF_SNAPSHOTS = Drain | Holding | Restored | Persisted
"""What is said of them."""


class Rollbacks:
    def __init__(
        self, members: AttemptMembers, record: Callable[[Record], None], *, on_disk: bool = False
    ) -> None:
        """With `on_disk` keepers write safe snapshots to a directory, too."""
        self._written = _on_disk() if on_disk else None
        self._members = members
        self._record = record
        self._book: SnapshotBook | None = None  # until a launcher says that it keeps something
        self._start: Start | None = None

    def begin(self, start: Start, now: float, *, known: bool = False) -> None:
        """An attempt has formed; `known`: some time ago."""
        self._start = start
        if self._book is None and not start.restore:
            return
        from rendezvous.snapshots.restore_plan import read  # what only snapshots need

        ranks = {name: member.ranks for name, member in self._members.known.items()}
        effects = self._opened().begin(start.attempt, ranks, read(start.restore), now)
        self._done(effects if not known else ())

    def _opened(self) -> "SnapshotBook":
        if self._book is None:
            from rendezvous.coordinator.snapshots import SnapshotBook

            self._book = SnapshotBook()
            if self._start is not None:
                self.begin(self._start, 0.0, known=True)
        return self._book

    def end(self, now: float) -> int:
        """An attempt is over: the step that all ranks can go back to, -1 if there is none."""
        if self._book is None:
            return -1
        self._book.end(now)
        newest = self._book.newest
        return -1 if newest is None else newest.step

    def hear(self, sender: str, message: Message, now: float) -> list[Envelope]:
        """A launcher, or a worker that it hosts, says something of snapshots."""
        match message:
            case Holding():
                told = self._done(self._opened().hear(sender, message))
                return [*told, *self._write(now)]
            case Persisted() if self._written is not None:
                for record in self._written.hear(sender, message, now):
                    self._record(record)
                return self._write(now)
            case Drain() if self._written is not None and self._start is not None:
                if not self._written.drain(self._opened().safe, message.reason, now):
                    return []
                self._record(Record("drain.begin", message.reason))
                ranks = range(self._start.world_size)
                asked = [one for rank in ranks for one in self._members.to_rank(rank, message)]
                return [*asked, *self._write(now)]
            case Restored(incarnation=incarnation) if self._is_present(incarnation):
                return self._done(self._opened().restored(message, now))
            case _:
                return []

    def _write(self, now: float) -> list[Envelope]:
        """Have the newest safe snapshot written, if it is time."""
        if self._written is None:
            return []
        present = sorted(self._members.present)
        stamp = time.time_ns() // 1_000_000
        order = self._written.write(self._opened().safe, present, stamp, now)
        return [] if order is None else [Envelope(name, NOBODY, order) for name in present]

    def tick(self, now: float) -> tuple[list[Envelope], Stop | None]:
        """Time passed. How the job ends that was to end, once its snapshot is on the disk, or
        cannot be.
        """
        if self._written is None or self._book is None:
            return [], None
        return self._write(now), self._written.drained(now)

    def exited(self, exited: Exited) -> None:
        """A rank of this attempt has ended."""
        if self._book is not None:
            self._book.exited(exited.step)

    def lose(self, launcher: str) -> None:
        """Its node is gone."""
        if self._written is not None:
            self._written.lose(launcher)
        if self._book is not None:
            self._book.lose(launcher)

    def judge(self, stop: Stop, *, enough: bool) -> Again | None:
        """What follows where the job would end; None if no snapshot changes that.

        `enough`: nodes are left for another attempt.
        """
        goes_back = self._book is not None and enough and is_loss(stop) and self._book.grant()
        return Again(stop.reason, counts=False) if goes_back else None

    def _is_present(self, incarnation: int) -> bool:
        return self._start is not None and attempt_of(incarnation) == self._start.attempt

    def _done(self, effects: "Iterable[Record | ToKeepers]") -> list[Envelope]:
        told: list[Envelope] = []
        for effect in effects:
            if not isinstance(effect, Record):
                present = self._members.present
                names = sorted(present & {effect.launcher} if effect.launcher else present)
                told += [Envelope(name, NOBODY, effect.keep) for name in names]
            else:
                self._record(effect)
        return told


def _on_disk() -> "WrittenSnapshots":
    from rendezvous.coordinator import written_snapshots  # what only snapshots need

    return written_snapshots.WrittenSnapshots()


def is_loss(stop: Stop) -> bool:
    """True if something was lost, and no script ended by an error of its own."""
    return stop.exit_code in (ExitCode.BELOW_MINIMUM, ExitCode.HANG) or stop.exit_code > SIGNALLED
