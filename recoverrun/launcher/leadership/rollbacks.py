"""At the coordinator host: what launchers and workers say of snapshots, and what is done about it.

A loss that leaves no replica ends the attempt. Where a snapshot can be had, all ranks start again
from it, and that is no failure: it does not count towards --max-restarts.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from recoverrun.errors import ExitCode
from recoverrun.launcher.leadership.launchers import AttemptMembers
from recoverrun.launcher.leadership.next_attempt import NextAttempt
from recoverrun.launcher.network.frames import NOBODY, Envelope
from rendezvous.coordinator.losses import SIGNALLED
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.messages import Exited, Message, Stop
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Exchanging, Holding, Restored

if TYPE_CHECKING:
    from rendezvous.coordinator.snapshots import Effect, SnapshotBook  # what only snapshots need

OF_SNAPSHOTS = Holding | Exchanging | Restored
"""What is said of them."""


class Rollbacks:
    def __init__(
        self, members: AttemptMembers, record: Callable[[Record], None], parity: int = 0
    ) -> None:
        """`parity`: nodes of each group that may be lost."""
        self._parity = parity
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
        effects = self._opened(now).begin(start.attempt, ranks, read(start.restore), now)
        self._done(effects if not known else ())

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

    def hear(self, sender: str, message: Message, now: float) -> list[Envelope]:
        """A launcher, or a worker that it hosts, says something of snapshots."""
        match message:
            case Holding():
                return self._done(self._opened(now).hear(sender, message, now))
            case Exchanging():
                return self._done(self._opened(now).exchange(sender, message))
            case Restored(incarnation=incarnation) if self._is_present(incarnation):
                return self._done(self._opened(now).restored(message, now))
            case _:
                return []

    def exited(self, exited: Exited) -> None:
        """A rank of this attempt has ended."""
        if self._book is not None:
            self._book.exited(exited.step)

    def lose(self, launcher: str) -> None:
        """Its node is gone."""
        if self._book is not None:
            self._book.lose(launcher)

    def judge(self, stop: Stop) -> NextAttempt | None:
        """What follows where the job would end; None if no snapshot changes that.

        Where too few nodes are left the next attempt waits for another one, as long as for those of
        the first: what a lost node had is kept by the others until then.
        """
        goes_back = self._book is not None and is_loss(stop) and self._book.grant()
        return NextAttempt(stop.reason, counts=False) if goes_back else None

    def _is_present(self, incarnation: int) -> bool:
        return self._start is not None and attempt_of(incarnation) == self._start.attempt

    def _done(self, effects: "Iterable[Effect]") -> list[Envelope]:
        told: list[Envelope] = []
        for effect in effects:
            if isinstance(effect, Record):
                self._record(effect)
                continue
            present = self._members.present
            names = sorted(present & {effect.launcher} if effect.launcher else present)
            told += [Envelope(name, NOBODY, effect.message) for name in names]
        return told


def is_loss(stop: Stop) -> bool:
    """True if something was lost, and no script ended by an error of its own."""
    return stop.exit_code in (ExitCode.BELOW_MINIMUM, ExitCode.HANG) or stop.exit_code > SIGNALLED
