"""The way back to snapshots, at the coordinator host: what launchers and workers say of them, and
what follows.

A loss that leaves no replica whole, or fewer than are wanted, ends the attempt; others are
recovered from in their step, and nothing is heard of them here. Where a snapshot can be had, all
ranks start again from it, and that is no failure: it does not count towards --max-restarts.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from recoverrun.launcher.leadership.acts import HeldByLauncher
from recoverrun.launcher.leadership.launchers import AttemptMembers
from recoverrun.launcher.leadership.next_attempt import NextAttempt
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.protocol.exit_codes import SIGNALLED, ExitCode
from rendezvous.protocol.formation_messages import Join, Start
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Exited, Message, Stop
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import (
    Drain,
    Exchanging,
    Holding,
    Persisted,
    Restored,
)

if TYPE_CHECKING:
    from rendezvous.coordinator.snapshots import Effect, SnapshotBook  # what only snapshots need
    from rendezvous.coordinator.written_snapshots import WrittenSnapshots

OF_SNAPSHOTS = Drain | Exchanging | Holding | Restored | Persisted
"""The messages about snapshots."""


class Rollbacks:
    def __init__(
        self,
        members: AttemptMembers,
        record: Callable[[Record], None],
        parity: int = 0,
        *,
        on_disk: bool = False,
    ) -> None:
        """`parity`: nodes of each group that may be lost. With `on_disk` keepers write safe
        snapshots to a directory, too.
        """
        self._parity = parity
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
        from rendezvous.snapshots.restore_plan import read, start_in  # what only snapshots need

        restored, wrote = read(start.restore), start_in(start.restore)
        book, ranks = self._opened(now), self._ranks()
        effects = book.begin(start.attempt, ranks, restored, now, wrote=wrote)
        self._done(effects if not known else ())

    def set_ranks(self) -> list[Envelope]:
        """A launcher has the place of one that is lost, in the middle of the attempt."""
        return [] if self._book is None else self._done(self._book.set_ranks(self._ranks()))

    def _ranks(self) -> dict[str, range]:
        return {name: member.ranks for name, member in self._members.known.items()}

    def _opened(self, now: float) -> "SnapshotBook":
        if self._book is None:
            from rendezvous.coordinator.snapshots import SnapshotBook

            self._book = SnapshotBook(self._parity)
            if self._start is not None:
                self.begin(self._start, now, known=True)
        return self._book

    def end(self, now: float) -> int:
        """An attempt is over: the step that all ranks can go back to, -1 if there is none."""
        if self._book is None:
            return -1
        self._book.end(now)
        newest = self._book.newest
        return -1 if newest is None else newest.step

    def without_unfit(self, join: Join) -> Join:
        """A launcher joins with what its keeper has: all of that can be gone back to in here."""
        if self._book is None or not self._book.unfit:
            return join
        from rendezvous.coordinator.unfit_snapshots import without  # what only snapshots need

        return without(self._book.unfit, join)

    def adopt(self, held: HeldByLauncher, now: float) -> list[Envelope]:
        """Others have begun the attempt, and this is what members have remembered of snapshots."""
        return [one for name, holding in held for one in self.hear(name, holding, now)]

    def hear(self, sender: str, message: Message, now: float) -> list[Envelope]:
        """A launcher, or a worker that it hosts, says something of snapshots."""
        match message:
            case Holding():
                envelopes = self._done(self._opened(now).hear(sender, message, now))
                return [*envelopes, *self._write(now)]
            case Exchanging():
                envelopes = self._done(self._opened(now).exchange(sender, message))
                return [*envelopes, *self._write(now)]
            case Persisted() if self._written is not None:
                for record in self._written.hear(sender, message, now):
                    self._record(record)
                return self._write(now)
            case Drain() if self._written is not None and self._start is not None:
                if not self._written.drain(self._opened(now).safe, message.reason, now):
                    return []
                self._record(Record("drain.begin", message.reason))
                ranks = range(self._start.world_size)
                asked = [one for rank in ranks for one in self._members.to_rank(rank, message)]
                return [*asked, *self._write(now)]
            case Restored(incarnation=incarnation) if self._is_present(incarnation):
                return self._done(self._opened(now).restored(message, now))
            case _:
                return []

    def _write(self, now: float) -> list[Envelope]:
        """Have the newest safe snapshot written, if it is time, and all of it is there."""
        if self._written is None or self._start is None:
            return []
        present = sorted(self._members.present)
        order = self._written.write(self._opened(now).at_hand, present, self._start.number, now)
        return [] if order is None else [Envelope(name, NOBODY, order) for name in present]

    def tick(self, now: float) -> tuple[list[Envelope], Stop | None]:
        """Time passed. Returns also how a drained job ends, once its snapshot is on the disk, or
        cannot be.
        """
        if self._written is None or self._book is None:
            return [], None
        return self._write(now), self._written.drained(now)

    def exited(self, exited: Exited, layout: Layout | None) -> None:
        """A rank of this attempt has ended. Replicas vote on steps, which they count anew."""
        if self._book is not None:
            anew = layout is not None and len(layout.replicas) > 1
            self._book.exited(exited.step, rank=exited.rank, anew=anew)

    def lose(self, launcher: str) -> None:
        """The node of this launcher is gone."""
        if self._written is not None:
            self._written.lose(launcher)
        if self._book is not None:
            self._book.lose(launcher)

    def judge(self, stop: Stop) -> NextAttempt | None:
        """The next attempt where the job would end; None if no snapshot changes that.

        Where too few nodes are left the next attempt waits for another one, as long as for those of
        the first: what a lost node had is kept by the others until then.
        """
        book = self._book
        if book is None or not (is_loss(stop) or book.spoilt):
            return None
        if book.grant(stop.root_rank, stop.exit_code):
            return NextAttempt(stop.reason, counts=False)
        if words := book.in_vain:
            self._record(notice(words))
        return None

    def _is_present(self, incarnation: int) -> bool:
        return self._start is not None and attempt_of(incarnation) == self._start.attempt

    def _done(self, effects: "Iterable[Effect]") -> list[Envelope]:
        envelopes: list[Envelope] = []
        for effect in effects:
            if isinstance(effect, Record):
                self._record(effect)
                continue
            present = self._members.present
            names = sorted(present & {effect.launcher} if effect.launcher else present)
            envelopes += [Envelope(name, NOBODY, effect.message) for name in names]
        return envelopes


def _on_disk() -> "WrittenSnapshots":
    from rendezvous.coordinator import written_snapshots  # what only snapshots need

    return written_snapshots.WrittenSnapshots()


def is_loss(stop: Stop) -> bool:
    """True if something was lost, and no script ended by an error of its own."""
    return stop.exit_code in (ExitCode.BELOW_MINIMUM, ExitCode.HANG) or stop.exit_code > SIGNALLED
