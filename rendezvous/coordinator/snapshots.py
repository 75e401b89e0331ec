"""The snapshots of a job, which of them is safe, and the way back where a loss ends all.

Theory of operation. Launchers tell what their keepers hold, as totals. A snapshot is *whole* once
each rank has its part of it, on its own node. Until that is heard a part may be gone again, so all
keepers are asked to keep it beside the one that is *safe*. Once all say that they do, and that the
parity of their groups stands, it is safe; they are told, and only then may the one before be
written over. Where parity cannot be had (too little memory, PARITY_S are over) it is safe without:
against the loss of processes, not of nodes.

A restart of all ranks goes back to the newest that can be had. It does not count as a failure as
long as it leads on: after BARREN of them in a row without a newer safe snapshot it does. So it does
where attempts end alike, the same rank at the same step by the same signal, more than ALIKE times
in a row: that is the script's own doing, however many snapshots were taken before it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rendezvous.coordinator.parity_circle import ParityCircle, ToExchanges
from rendezvous.coordinator.snapshot_records import LOST, REPLACED, degraded, identity, in_vain
from rendezvous.coordinator.unfit_snapshots import without
from rendezvous.protocol.records import Json, Record, notice
from rendezvous.protocol.snapshot_messages import (
    Exchanging,
    Holding,
    Keep,
    Order,
    Restored,
)
from rendezvous.snapshots.identity import NONE, SnapshotId, on_disk
from rendezvous.snapshots.restore_plan import Node, plan

PARITY_S = 600.0
"""So long parity may take. No newer snapshot can be safe meanwhile."""

BARREN = 3
"""So many restarts in a row may fail to reach a newer safe snapshot."""

ALIKE = 2
"""So many attempts in a row that end alike are followed by another one."""

UNFIT = "the snapshot of step {} is not gone back to again: {}"


@dataclass(slots=True)
class _Return:
    """A restart of all ranks on its way; times are those of the coordinator's clock."""

    ended_at: float  # the loss was known
    formed_at: float = 0.0
    restored: SnapshotId = NONE
    state_ms: dict[int, float] = field(default_factory=dict)  # by rank


@dataclass(frozen=True, slots=True)
class ToKeepers:
    """Have this launcher tell its keeper, or all launchers theirs ("")."""

    message: Keep
    launcher: str = ""


Effect = Record | ToKeepers | ToExchanges


class SnapshotBook:
    """The snapshots of one job, in all attempts. Launchers are named by their incarnations."""

    def __init__(self, level: int = 0) -> None:
        """`level`: nodes of each group that may be lost."""
        self._circle = ParityCircle(level)
        self._begun_at = 0.0  # the attempt
        self._kept_at = -1.0  # when all kept what is to be next
        self.safe = NONE
        self.next = NONE  # whole, and about to be safe
        self.attempt = 0
        self._number = 0  # of the newest order
        self._ranks: dict[str, range] = {}  # of each launcher that has a place
        self._world = 0
        self._holdings: dict[str, Holding] = {}
        self._parts: Counter[SnapshotId] = Counter()  # ranks that have theirs, of this world
        self._bytes: Counter[SnapshotId] = Counter()
        self._barren = 0
        self._return: _Return | None = None
        self._reached = -1  # the highest step of a snapshot that was safe
        self._at = -1  # the highest step that a rank was at when it ended
        self._steps: dict[int, int] = {}  # that ranks were at when they ended, in this attempt
        self._end: tuple[int, int, int] | None = None  # the newest: rank, exit code, step
        self._alike = 0  # attempts in a row that ended so
        self._origin = NONE  # the snapshot that this attempt has begun with
        self._wrote = -1  # the start that has written it to disks, if it comes from there
        self.spoilt = False  # a part of what all went back to could not be had
        self.unfit: set[SnapshotId] = set()

    # --------------------------------------------------------------------------- attempts

    def begin(
        self,
        attempt: int,
        ranks: Mapping[str, range],
        restored: SnapshotId | None,
        now: float,
        *,
        wrote: int = -1,
    ) -> list[Record]:
        """An attempt has formed, and its ranks begin from `restored`, None: from line 1. `wrote`:
        the start that has written it to the disks where it comes from, -1 if it was in memory.

        Launchers tell their keepers so themselves.
        """
        former, of = self.safe, self._world
        reached, self._at = self._at, -1
        self.attempt, self._ranks = attempt, dict(ranks)
        self._world = sum(map(len, ranks.values()))
        for launcher in self._holdings.keys() - ranks.keys():
            del self._holdings[launcher]
        self._count()
        self.safe, self.next, self._number = restored or NONE, NONE, 0
        self._circle.begin(attempt, ranks, restored)
        self._begun_at, self._kept_at, self.spoilt = now, -1.0, False
        self._origin, self._wrote = restored or NONE, wrote
        self._steps.clear()
        if restored is None:
            self._return = None
            return [] if former == NONE else [in_vain(former, of, self._world)]
        going = self._return = self._return or _Return(now)
        going.formed_at, going.restored = now, restored
        fields: dict[str, Json] = {
            "attempt": attempt, "of": restored.attempt, "step": restored.step,
        }  # fmt: skip
        if reached >= restored.step:
            fields["back"] = reached - restored.step
        words = f"all ranks go back to the top of step {restored.step}"
        return [Record("snapshot.plan", words, fields)]

    def set_ranks(self, ranks: Mapping[str, range]) -> list[Effect]:
        """A launcher has the place of one that is lost, in the middle of the attempt: these have
        places now. Its ranks get their state from others; the part of what was kept that its node
        should have is rebuilt, if that can be.
        """
        self._ranks = dict(ranks)
        for launcher in self._holdings.keys() - ranks.keys():
            del self._holdings[launcher]
        self._count()
        self._circle.set_ranks(ranks)
        effects: list[Effect] = []
        if self._circle.exposed and self.newest != self.safe:
            self._circle.give_up()
            self.safe, self.next, self._kept_at = self.newest or NONE, NONE, -1.0
            if self.safe != NONE:
                effects.append(degraded(self.safe, REPLACED))
            effects.append(self._give_order())
        return [*effects, *self._circle.due("", self._present())]

    def grant(self, rank: int = -1, code: int = 0) -> bool:
        """The loss of `rank`, -1: of no single one, ends the attempt with this exit code. True if
        all ranks can go back, and that leads on.
        """
        step = self._steps.get(rank, -1) if rank >= 0 else self._at
        end = None if step < 0 else (rank, code, step)
        self._alike = self._alike + 1 if end is not None and end == self._end else 1
        self._end = end
        if self.newest is None or self._barren >= BARREN or self._alike > ALIKE:
            return False
        self._barren += 1
        return True

    @property
    def in_vain(self) -> str:
        """The reason why nobody goes back to the snapshot that was safe; "" if none was."""
        if self.safe == NONE:
            return ""
        if self.newest is None:
            return LOST.format(self.safe.step, "parts of it are lost")
        if self._alike > ALIKE and self._end is not None:
            rank, _, step = self._end
            who = "the job" if rank < 0 else f"rank {rank}"
            words = f"{who} has ended alike, at step {step}, in {self._alike} attempts in a row"
            return LOST.format(self.newest.step, words)
        return LOST.format(self.newest.step, f"{BARREN} times in a row no newer one became safe")

    @property
    def newest(self) -> SnapshotId | None:
        """The snapshot that all ranks can go back to now, None if there is none."""
        return plan([self._node(name) for name in self._circle.names])

    @property
    def at_hand(self) -> SnapshotId:
        """The safe one if each rank's part is on its node now. It is not where a node is lost, and
        a replica has survived that.
        """
        return self.safe if self._parts[self.safe] == self._world else NONE

    def _node(self, launcher: str) -> Node:
        holding = self._holdings.get(launcher)
        many = len(self._ranks[launcher])
        return (many, (), ()) if holding is None else (many, holding.held, holding.shares)

    def exited(self, step: int, *, rank: int = -1, anew: bool = False) -> None:
        """A rank has ended, which was at this step; `anew`: steps are counted from 0 in this
        attempt. -1: nobody knows.
        """
        reached = step + max(0, self._origin.step) if anew and step >= 0 else step
        self._steps[rank] = reached
        self._at = max(self._at, reached)

    def end(self, now: float) -> None:
        """The attempt is over."""
        self._return = _Return(now)

    # --------------------------------------------------------------------------- what is held

    def exchange(self, launcher: str, exchanging: Exchanging) -> list[Effect]:
        """The exchange of a launcher says where it is, and what it has heard."""
        if launcher not in self._ranks:
            return []
        self._circle.hear(launcher, exchanging)
        return [*self._circle.due(launcher, self._present())]

    def hear(self, launcher: str, holding: Holding, now: float) -> list[Effect]:
        """Note what the keeper of a launcher has now."""
        known, holding = self._holdings.get(launcher), without(self.unfit, holding)
        if launcher not in self._ranks or (known is not None and _age(holding) < _age(known)):
            return []
        self._add(launcher, -1)
        self._holdings[launcher] = holding
        self._add(launcher, 1)
        attempt, number, safe, following = holding.order
        if attempt == self.attempt and number:
            self._circle.exposed = False  # no order is given before
        if attempt == self.attempt and number and holding.order > self._order:
            # It is another coordinator's, perhaps with a number that was also given here: keepers
            # obey the greatest. Number 0 is what they have begun with by themselves.
            self._number = number
            self.safe, self.next = SnapshotId(*safe), SnapshotId(*following)
        effects: list[Effect] = [*self._circle.due("", self._present()), *self._renewed(now)]
        effects += self._secure(launcher, now)
        effects += self._choose()
        if not effects and holding.order < self._order:
            return [ToKeepers(Keep(order=self._order), launcher)]  # it has missed one, perhaps
        return effects

    def _present(self) -> list[Node] | None:
        """The holdings of all nodes as the attempt began, in order; None until all have said it."""
        heard = (self._holdings.get(name) for name in self._ranks)
        if not all(one is not None and one.order[0] == self.attempt for one in heard):
            return None
        return [self._node(name) for name in self._circle.names]

    def _renewed(self, now: float) -> list[Effect]:
        """Parity of what all ranks went back to stands again, or will not. From now on the safe one
        before it may be written over, and another one may be next.
        """
        if not self._circle.exposed:
            return []
        why = self._no_parity(self.safe, self._begun_at, now)
        stands = self._circle.stands(self.safe, self._holdings)
        if not (stands or why):
            return []
        self._circle.exposed = False
        words = f"the parity of the snapshot of step {self.safe.step} stands on all nodes again"
        record = Record("snapshot.parity", words, identity(self.safe)) if stands else None
        return [record or degraded(self.safe, why), self._give_order()]

    def _no_parity(self, of: SnapshotId, since: float, now: float) -> str:
        """The reason why there will be none, or not soon enough; "" if it is waited for."""
        late = f"it did not stand after {PARITY_S:g} s" if now >= since + PARITY_S else ""
        return self._circle.unable(of) or late

    def _secure(self, launcher: str, now: float) -> list[Effect]:
        """Make the next one safe once all keep it and its parity stands; drop it if this launcher
        has lost it.
        """
        if self.next == NONE or self._obeyed(launcher) is None:
            return []
        if not self._obeyed(launcher):
            self.next, self._kept_at = NONE, -1.0
            return [self._give_order()]
        if not all(self._obeyed(name) for name in self._ranks):
            return []
        if self._kept_at < 0:
            self._kept_at = now
        stands, why = self._circle.stands(self.next, self._holdings), ""
        if not stands:
            why = self._no_parity(self.next, self._kept_at, now)
            if not why:
                return []
        effects: list[Effect] = [] if stands else [degraded(self.next, why)]
        parity = self._circle.level if stands else 0
        self.safe, self.next, self._kept_at = self.next, NONE, -1.0
        if self.safe.step > self._reached:  # not one that was taken before, and is taken again
            self._reached, self._barren = self.safe.step, 0
        words = f"the snapshot of step {self.safe.step} is safe"
        fields = {**identity(self.safe), "parity": parity}
        return [*effects, Record("snapshot.safe", words, fields), self._give_order()]

    def _obeyed(self, launcher: str) -> bool | None:
        """True if it keeps what is to be next; None if it has not heard yet that it should."""
        holding, ranks = self._holdings.get(launcher), self._ranks[launcher]
        if holding is None or holding.order != self._order:
            return None
        wanted = {(*self.next, self._world, rank) for rank in ranks}
        return wanted <= {held[:4] for held in holding.held}

    def _choose(self) -> list[Effect]:
        """The newest that is whole is to be next."""
        whole = [found for found, parts in self._parts.items() if parts == self._world]
        newest = max(whole, default=NONE)
        if self._circle.exposed or self._kept_at >= 0:
            return []  # The safe one has to stay until then, or parity of the next is being made.
        if newest <= max(self.safe, self.next) or newest.attempt != self.attempt:
            return []
        self.next, self._kept_at = newest, -1.0
        fields = {**identity(newest), "bytes": self._bytes[newest]}
        words = f"the snapshot of step {newest.step} is whole"
        return [Record("snapshot.whole", words, fields), self._give_order()]

    def lose(self, launcher: str) -> None:
        """The node of this launcher is gone, and the memory with it."""
        if launcher in self._ranks:
            self._add(launcher, -1)
            self._holdings.pop(launcher, None)
            self._circle.lose(launcher)

    def restored(self, restored: Restored, now: float) -> list[Effect]:
        """A rank stands where it stood; or its part is none, whatever its keeper has told."""
        going, found = self._return, SnapshotId(restored.attempt, restored.step)
        if found != self._origin:
            return []
        if restored.failed:
            return self._fail(found, restored)
        if going is None:
            return []
        going.state_ms[restored.rank] = restored.state_ms
        if len(going.state_ms) < self._world:
            return []
        self._return = None
        fields: dict[str, Json] = {
            "attempt": self.attempt, "of": restored.attempt, "step": restored.step,
            "away_ms": round(1000 * (now - going.ended_at), 3),
            "end_ms": round(1000 * (going.formed_at - going.ended_at), 3),
            "state_ms": max(going.state_ms.values()), "rebuilt": list(self._circle.brought),
        }  # fmt: skip
        words = f"all ranks stand at the top of step {restored.step} again"
        return [Record("snapshot.restored", words, fields)]

    def _fail(self, found: SnapshotId, restored: Restored) -> list[Effect]:
        """Drop the part of one rank, or, from keepers as well, all parts of an unfit snapshot; and
        those on disks, of one that cannot be had from there.
        """
        before, self.spoilt = len(self.unfit), True
        part = (*found, self._world, restored.rank)
        if restored.unfit:
            self.unfit.add(found)
        if self._wrote >= 0:
            self.unfit.add(on_disk(self._wrote, found.step))
        for launcher, holding in list(self._holdings.items()):
            held = holding.held
            if restored.rank in self._ranks[launcher]:
                held = tuple(one for one in held if one[:4] != part)
            self._add(launcher, -1)
            self._holdings[launcher] = without(self.unfit, replace(holding, held=held))
            self._add(launcher, 1)
        keep = ToKeepers(Keep(order=self._order, unfit=tuple(sorted(self.unfit))))
        told = len(self.unfit) > before
        return [notice(UNFIT.format(found.step, restored.failed)), keep] if told else []

    # --------------------------------------------------------------------------- what is known

    @property
    def _order(self) -> Order:
        return self.attempt, self._number, self.safe, self.next

    def _give_order(self) -> ToKeepers:
        self._number += 1
        return ToKeepers(Keep(order=self._order))

    def _count(self) -> None:
        self._parts.clear()
        self._bytes.clear()
        for launcher in self._holdings:
            self._add(launcher, 1)

    def _add(self, launcher: str, sign: int) -> None:
        ranks: Sequence[int] = self._ranks.get(launcher, range(0))
        holding = self._holdings.get(launcher)
        for attempt, step, world, rank, nbytes in () if holding is None else holding.held:
            if world == self._world and rank in ranks:
                self._parts[SnapshotId(attempt, step)] += sign
                self._bytes[SnapshotId(attempt, step)] += sign * nbytes
        if sign < 0:
            self._parts += Counter()  # those that nobody has are none
            self._bytes += Counter()


def _age(holding: Holding) -> tuple[int, int]:
    return holding.keeper, holding.serial
