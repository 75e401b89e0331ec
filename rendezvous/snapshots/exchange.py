"""Makes the parity of one node with the others of its group, and rebuilds what a lost node had.

Theory of operation. Nobody pushes: whoever has a stripe's parity asks the others for their chunks,
part by part, sums them up and writes the result. So a part cannot be counted twice, a message that
is lost is asked for again, and an exchange that ends in the middle leaves no share. A node that has
to have parts of a lost one asks, for each of its stripes, the node that has the stripe's parity:
that one asks the others. What is asked is named in full, attempt and group with it, and is answered
from memory that is kept by order of the coordinator.

Events in, effects out, time passed in; the memory of the node is read and written at once.
"""

from zlib import crc32

from rendezvous.protocol.exchange_messages import Bytes, Described, Request
from rendezvous.protocol.snapshot_messages import Circle, Holding
from rendezvous.snapshots import exchange_units
from rendezvous.snapshots.exchange_asking import Asking, Stream
from rendezvous.snapshots.exchange_work import (
    Decoding,
    Effect,
    Encoding,
    KeptSnapshot,
    NodeMemory,
    Restoring,
    ShareId,
    Tell,
    Unit,
)
from rendezvous.snapshots.identity import NO_ORDER, NONE, SnapshotId
from rendezvous.snapshots.member_stream import spans
from rendezvous.snapshots.parity_code import PART_BYTES, Part, Xor
from rendezvous.snapshots.parity_groups import groups_of

WINDOW = 4
"""Units of one piece of work that are under way at once."""

SHARE_OF_PERIOD = 0.5
"""Of the time from one snapshot to the next that its parity may take, where the wire allows it."""

LEAST_BYTES_PER_S = 64 << 20

FAILURES = 3
"""So often a part may be rebuilt that is not what it was."""


class Exchange:
    """The exchange of one node."""

    def __init__(
        self,
        memory: NodeMemory,
        xor: Xor,
        part: int = PART_BYTES,
        *,
        authenticated: bool = False,
    ) -> None:
        """`part`: bytes that are asked for at once, the same at all nodes. Where every message is
        `authenticated` what comes is not summed up again: parity has the sums of those who read its
        parts, and what is rebuilt is compared with those of its keeper.
        """
        self._memory = memory
        self._xor = xor
        self._part = part
        self._zeros = crc32(bytes(part))
        self._asking = Asking(memory, xor, part, authenticated=authenticated)
        self._holding = Holding(keeper=0, serial=0, order=NO_ORDER, held=())
        self._encoding: Encoding | None = None
        self._restoring: list[Restoring] = []
        self._given_up: set[tuple[KeptSnapshot, int]] = set()  # ranks that cannot be had
        self._handed: set[int] = set()  # ranks whose parts were handed to the keeper
        self._began = 0.0  # the share before
        self.unable: SnapshotId = NONE  # no memory for the parity of this one

    @property
    def heard(self) -> tuple[int, int]:
        """Attempt and number of the newest circle."""
        circle = self._asking.circle
        return (-1, 0) if circle is None else (circle.attempt, circle.number)

    @property
    def is_settled(self) -> bool:
        """True if nothing is to be done; else it may have missed that others are called elsewhere,
        or others that it has no memory.
        """
        current = self.heard[0] == self._holding.order[0]
        return current and not self._asking.questions and self.unable == NONE

    # --------------------------------------------------------------------------- events

    def join(self, circle: Circle, now: float) -> list[Effect]:
        """The coordinator says who makes parity with whom."""
        self._asking.effects.append(Tell())
        if (circle.attempt, circle.number) > self.heard:
            self._stop()
            self._asking.begin(circle)
            self._handed = set()
            self._begin(now)
        return self._out(now)

    def hear(self, holding: Holding, now: float) -> list[Effect]:
        """Note what the keeper of this node has now."""
        if holding.keeper != self._holding.keeper:
            self._handed = set()
        self._holding = holding
        self._begin(now)
        return self._out(now)

    def ask(self, peer: str, request: Request, now: float) -> list[Effect]:
        """Another exchange asks something."""
        self._asking.answer(peer, request, now)
        return self._out(now)

    def answer(self, message: Described | Bytes, data: Part, now: float) -> list[Effect]:
        """Another exchange answers; `data` are the bytes that came with it."""
        self._asking.take(message, data, now)
        return self._out(now)

    def met(self, node: int, now: float) -> list[Effect]:
        """There is a connection to the exchange of this node: what was said before was lost."""
        self._asking.questions.hasten(node, now)
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Time passed."""
        if self._encoding is not None and now >= self._encoding.stalls_at:
            self._begin(now)
        self._asking.again(now)
        return self._out(now)

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        due, work = self._asking.questions.deadline(), self._encoding
        times = [] if due is None else [due]
        if work is not None and work.todo is None:
            times.append(work.stalls_at)
        if work is not None and work.todo is not None and not work.drained and work.open < WINDOW:
            times.append(work.next_at)
        return min(times, default=None)

    def check(self) -> None:
        counts = [work.open for work in self._restoring]
        if self._encoding is not None:
            counts.append(self._encoding.open)
        assert all(0 <= many <= WINDOW for many in counts), f"{counts} units are under way"

    # --------------------------------------------------------------------------- what is to be done

    def _begin(self, now: float) -> None:
        """Begin what the coordinator's order asks for, and end what it does not any more."""
        circle, order = self._asking.circle, self._holding.order
        if circle is None or order[0] != circle.attempt:
            self._stop()
            return
        wanted = [SnapshotId(*one) for one in order[2:] if tuple(one) != NONE]
        if self._encoding is not None and self._encoding.share[:2] not in wanted:
            self._drop_encoding()
        self._restore(circle, now)
        self._encode(circle, wanted, now)

    def _restore(self, circle: Circle, now: float) -> None:
        """Have what the ranks of this node begin from brought here."""
        of = KeptSnapshot(*circle.of, sum(circle.ranks))
        here = {
            held[3] for held in self._holding.held if KeptSnapshot(*held[:3]) == of
        } | self._handed
        wanted = bool(circle.sources) and tuple(self._holding.order[2]) == circle.of
        for work in list(self._restoring):
            if not wanted or here.issuperset(work.ranks):
                self._drop_restoring(work)
        if not wanted:
            return
        open_ones = {rank for work in self._restoring for rank in work.ranks}
        given_up = {rank for one, rank in self._given_up if one == of}
        for work in exchange_units.lacking(circle, of, here | open_ones | given_up):
            self._restoring.append(work)
            node = exchange_units.who_knows(work)
            self._asking.describe(work, of, work.group, slot=work.slot, node=node, now=now)

    def _encode(self, circle: Circle, wanted: list[SnapshotId], now: float) -> None:
        """Begin with the share of the oldest snapshot that is kept and has none, or of another one
        where that one stalls.
        """
        if self._encoding is not None and now >= self._encoding.stalls_at:
            last = SnapshotId(*self._encoding.share[:2])
            wanted = [*(one for one in wanted if one != last), last]
            self._drop_encoding()
        groups = groups_of(circle.ranks, circle.level) if self._encoding is None else []
        found = next((one for one in groups if circle.node in one[0]), None)
        if found is None:
            return
        nodes, group = found
        slot, world = nodes.index(circle.node), sum(circle.ranks)
        for one in wanted:
            share = ShareId(*one, world, group.level, slot, group.members)
            there = share in self._memory.shares() or one == self.unable
            if not there and self._memory.extents(share.of, group.members[slot]):
                self._encoding = work = Encoding(share, nodes, now)
                for other in range(group.size):
                    if other != slot:
                        self._asking.describe(
                            work, share.of, group, slot=other, node=nodes[other], now=now
                        )
                return

    def _stop(self) -> None:
        self._drop_encoding()
        for work in list(self._restoring):
            self._drop_restoring(work)

    def _drop_encoding(self) -> None:
        work, self._encoding = self._encoding, None
        if work is not None:
            self._asking.questions.forget(work)
            self._memory.drop_share(work.share)

    def _drop_restoring(self, work: Restoring) -> None:
        self._restoring.remove(work)
        self._asking.questions.forget(work)
        self._memory.drop_bays(work.of, work.ranks)

    def _give_up(self, work: Restoring, why: str) -> None:
        self._asking.effects.append(Tell(why))
        self._given_up.update((work.of, rank) for rank in work.ranks)
        self._drop_restoring(work)

    # --------------------------------------------------------------------------- work

    def _out(self, now: float) -> list[Effect]:
        """Go on as far as that is possible now; what is had at once leads to more."""
        asking = self._asking
        while asking.complete or self._goes_on(now):
            while asking.complete:
                found = asking.complete.popleft()
                if isinstance(found, Stream):
                    self._described(found, now)
                elif found.work is self._encoding or found.work in self._restoring:
                    self._finish(found)
        self.check()
        effects, asking.effects = asking.effects, []
        return effects

    def _goes_on(self, now: float) -> bool:
        """Begin with more units, where there is room for them. True if a piece of work is done."""
        for work in list(self._restoring):
            if self._advance(work, now):
                self._end_restoring(work)
                return True
        encoding = self._encoding
        if encoding is not None and self._advance(encoding, now):
            self._encoding = None
            self._memory.end_share(encoding.share)
            self._begin(now)
            return True
        return bool(self._asking.complete)

    def _described(self, found: Stream, now: float) -> None:
        work = found.work
        if isinstance(work, Encoding):
            work.extents[found.slot] = found.bays
            if work is self._encoding and len(work.extents) == len(work.nodes) - 1:
                self._begin_share(work, now)
        elif work in self._restoring:
            work.extents = found.bays
            if why := self._memory.begin_bays(work.of, work.wanted):
                self._give_up(work, f"a part of a snapshot cannot be brought here: {why}")
            else:
                work.todo = exchange_units.of_restoring(work, self._part)

    def _begin_share(self, work: Encoding, now: float) -> None:
        """All is known: begin."""
        share, parts = work.share, -(-work.longest // self._part)
        extents = tuple(work.extents.get(slot, ()) for slot in range(len(work.nodes)))
        if why := self._memory.begin_share(share, extents, parts):
            self.unable, self._encoding = SnapshotId(*share[:2]), None
            words = f"no parity of the snapshot of step {share.step}: too little memory: {why}"
            self._asking.effects.append(Tell(words))
            return
        nbytes = sum(unit.nbytes for unit in exchange_units.of_encoding(work, self._part))
        period_s, first, self._began = now - self._began, not self._began, now
        if not first:
            even = nbytes / (SHARE_OF_PERIOD * max(period_s, 0.1))
            work.bytes_per_s = max(LEAST_BYTES_PER_S, even)
        work.todo = exchange_units.of_encoding(work, self._part)

    def _advance(self, work: Encoding | Restoring, now: float) -> bool:
        """Begin with as many units as there is room for. True if all are done."""
        while work.todo is not None and work.open < WINDOW:
            if isinstance(work, Encoding) and now < work.next_at:
                return False
            unit = None if work.drained else next(work.todo, None)
            if unit is None:
                work.drained = True
                return work.open == 0
            if isinstance(work, Encoding) and work.bytes_per_s:
                work.next_at = max(now, work.next_at) + unit.nbytes / work.bytes_per_s
            work.open += 1
            self._asking.fetch(unit, now)
        return False

    def _finish(self, unit: Unit) -> None:
        """All columns of a unit are here."""
        work = unit.work
        assert not isinstance(work, Decoding), "that is answered where it is complete"
        work.open -= 1
        if isinstance(work, Encoding):
            column, part = unit.at
            data = exchange_units.parity_of(unit, column, self._part, self._xor)
            check = exchange_units.check_of(unit, column, self._part, self._zeros)
            self._memory.write_share(work.share, column, part, data, check)
            return
        (data,) = unit.columns.values()
        begin, _ = unit.at
        for span in spans(work.extents, begin, begin + len(data)):
            if span.rank in work.ranks:
                piece = data[span.at : span.at + span.nbytes]
                self._memory.write_bay(work.of, span.rank, span.offset, piece)

    def _end_restoring(self, work: Restoring) -> None:
        wrong = self._memory.end_bays(work.of, work.wanted)
        if not wrong:
            self._restoring.remove(work)
            self._handed.update(work.ranks)
            return
        work.failed += 1
        words = f"a part that was rebuilt is not what it was: {wrong}"
        if work.failed >= FAILURES or self._memory.begin_bays(work.of, work.wanted):
            self._give_up(work, words)
        else:
            self._asking.effects.append(Tell(words))
            work.todo, work.drained = exchange_units.of_restoring(work, self._part), False
