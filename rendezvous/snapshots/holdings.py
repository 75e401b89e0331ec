"""The bays of a keeper, and which of them may be written over.

Theory of operation. Each rank has two bays. A bay that is being filled belongs to the process that
fills it, and has no content. It counts again once its header is there and its checksums are made.
The snapshot that is *safe* is never written over, nor the one that is to be next, nor what is being
read or summed; of the others the oldest goes first. A snapshot that was told to be whole may be
gone when that is heard: so it is asked for (`keep`) before it counts, and until then the one before
is kept. A process that takes a rank's place gets no memory that the one before may still write to:
that bay is dropped, and another made. What other processes say of the rank from then on has no
effect.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.snapshot_messages import Held, Holding, Order
from rendezvous.snapshots.bay_header import PAGE
from rendezvous.snapshots.identity import NO_ORDER, NONE, SnapshotId

BAYS = 2
"""Of each rank."""

SLACK_LEAST, SLACK_MOST = 1 << 16, 1 << 20
"""Bytes of a new bay beside those that were asked for."""

GRID_MOST, GRID_HALVES = 1024, 2
"""How many turns a rank may leave out at most, and after how many that got safe they are halved."""


@dataclass(slots=True)
class Bay:
    number: int  # that of its memory, unique on this machine while it exists
    rank: int
    nbytes: int
    owner: int | None  # the incarnation that may have it mapped for writing
    content: SnapshotId | None = None  # with its checksums
    world: int = 0  # of how many ranks the content is a part
    unsummed: SnapshotId | None = None  # its header is there
    readers: int = 0


@dataclass(slots=True)
class _Grid:
    """The turns at which a rank takes snapshots: multiples of a power of two.

    Where the one before is written over each time before it gets safe, none ever does; where ranks
    wait for one that not all of them have, neither. So all give up at the same turns: the power
    doubles when something was given up, and is halved after some that became safe.
    """

    every: int = 1
    successes: int = 0
    turn: int = -1  # the newest

    def gives_up(self) -> None:
        self.every, self.successes = min(2 * self.every, GRID_MOST), 0

    def succeeded(self) -> None:
        self.successes += 1
        if self.successes == GRID_HALVES:
            self.every, self.successes = max(1, self.every // 2), 0


@dataclass(frozen=True, slots=True)
class WritableBay:
    """The bay in which a rank may write. `number` None: one that is to be made; `dropped` goes
    first.
    """

    number: int | None
    dropped: tuple[int, ...] = ()


@dataclass(slots=True)
class KeeperHoldings:
    """The holdings of one keeper."""

    order: Order = NO_ORDER  # what is kept
    _bays: dict[int, Bay] = field(default_factory=dict)
    _newest: dict[int, int] = field(default_factory=dict)  # rank -> incarnation that speaks for it
    _grids: "dict[int, _Grid]" = field(default_factory=dict)  # by rank

    @property
    def safe(self) -> SnapshotId:
        """The snapshot that can be had again, as far as is known here."""
        return SnapshotId(*self.order[2])

    # --------------------------------------------------------------------------- who speaks

    def attach(self, rank: int, incarnation: int) -> bool:
        """A process of this rank is here. False if a newer one was before."""
        if incarnation < self._newest.get(rank, -1):
            return False
        if incarnation > self._newest.get(rank, -1):
            self._grids.pop(rank, None)  # turns are counted anew
        self._newest[rank] = incarnation
        return True

    def speaks(self, rank: int, incarnation: int) -> bool:
        """True if no newer process of this rank has come."""
        return self._newest.get(rank) == incarnation

    def end(self, rank: int, incarnation: int) -> None:
        """The kernel says that this process is gone, and all that it had mapped."""
        for bay in self._bays.values():
            if (bay.rank, bay.owner) == (rank, incarnation):
                bay.owner = None

    # --------------------------------------------------------------------------- filling

    def reserve(
        self, rank: int, incarnation: int, nbytes: int, turn: int | None = 0
    ) -> WritableBay | None:
        """The bay in which this process may write next: at least `nbytes`. Content that was there
        is gone.

        `turn` is the number of the snapshot that it is for, the same at all ranks. They count anew
        once a lost one is back. None: it is for one still to come. None if all that the rank has is
        being read or must stay.
        """
        if turn is None:
            return self._ahead(rank, incarnation, nbytes)
        mine = self._of(rank)
        room = len(mine) < BAYS
        if turn <= self._grid(rank).turn:
            del self._grids[rank]
        self._grid(rank).turn = turn
        if turn % self._grid(rank).every:
            return None
        # Oldest content first, none at all before that.
        oldest = min((bay for bay in mine if self._is_free(bay)), key=_age, default=None)
        if oldest is None or (room and oldest.content is not None):
            return WritableBay(None) if room else None
        if self._is_pending(oldest, incarnation):
            self._grid(rank).gives_up()
        if not self._fits(oldest, incarnation, nbytes):
            del self._bays[oldest.number]
            return WritableBay(None, (oldest.number,))
        oldest.content = None
        oldest.owner = incarnation
        return WritableBay(oldest.number)

    def made(self, bay: Bay) -> None:
        """This bay exists now; also one that was handed over."""
        self._bays[bay.number] = bay

    def filled(
        self, rank: int, incarnation: int, number: int, found: SnapshotId, world: int
    ) -> bool:
        """The header of this bay says so. True if its checksums are to be made."""
        bay = self._bays.get(number)
        if bay is None or bay.rank != rank or not self.speaks(rank, incarnation):
            return False
        if found.attempt != attempt_of(incarnation) or bay.content is not None or bay.readers:
            return False
        bay.unsummed, bay.world = found, world
        return True

    def summed(self, number: int, found: SnapshotId) -> bool:
        """Its checksums are made. True if it counts from now on."""
        bay = self._bays.get(number)
        if bay is None or bay.unsummed != found:
            return False
        bay.content, bay.unsummed = found, None
        return True

    def adopt(self, number: int, found: SnapshotId, world: int, *, summed: bool) -> None:
        """Adopt the content of a bay that was handed over."""
        bay = self._bays[number]
        bay.world = world
        bay.content, bay.unsummed = (found, None) if summed else (None, found)

    def surplus(self, rank: int, more: int = 0) -> tuple[int, ...]:
        """One was handed over beside those that this rank has, or `more` are to come: which of them
        are not here any more, so that it has no more than it may.
        """
        mine = self._of(rank)
        spare = sorted((bay for bay in mine if self._is_free(bay)), key=_age)
        gone = tuple(bay.number for bay in spare[: max(0, len(mine) + more - BAYS)])
        for number in gone:
            del self._bays[number]
        return gone

    def spoilt(self, number: int) -> None:
        """Mark the content of this bay as damaged."""
        if (bay := self._bays.get(number)) is not None:
            bay.content = bay.unsummed = None

    # --------------------------------------------------------------------------- keeping

    def keep(self, order: Order, unfit: Collection[SnapshotId] = ()) -> list[int]:
        """These two snapshots are not written over from now on, as far as they are here. Returns
        the numbers of the bays with `unfit` ones, which have no content any more.
        """
        former, self.order = self.safe, max(self.order, order)
        if self.safe != former:
            for bay in self._bays.values():
                if bay.content == self.safe:
                    self._grid(bay.rank).succeeded()
        bays = [one for one in self._bays.values() if {one.content, one.unsummed} & {*unfit}]
        for bay in bays:
            bay.content = bay.unsummed = None
        return [bay.number for bay in bays]

    def find(self, rank: int, wanted: SnapshotId) -> Bay | None:
        """The bay that has this rank's part of `wanted`."""
        return next((bay for bay in self._of(rank) if bay.content == wanted), None)

    def reading(self, number: int, change: int) -> None:
        """One reader more (1) or less (-1)."""
        if (bay := self._bays.get(number)) is not None:
            bay.readers = max(0, bay.readers + change)

    def statement(self) -> tuple[Held, ...]:
        """All that is whole here: a total."""
        kept = (bay for bay in self._bays.values() if bay.content is not None)
        return tuple(
            sorted((*(bay.content or NONE), bay.world, bay.rank, bay.nbytes) for bay in kept)
        )

    @property
    def bays(self) -> Iterable[Bay]:
        return tuple(self._bays.values())

    # --------------------------------------------------------------------------- what is known

    def _ahead(self, rank: int, incarnation: int, nbytes: int) -> WritableBay | None:
        """A bay without content, or with one that is of no use any more; what is told stays."""
        mine = self._of(rank)
        for bay in mine:
            old = self._is_free(bay) and _age(bay) <= self.safe
            if old and self._fits(bay, incarnation, nbytes):
                bay.content, bay.owner = None, incarnation
                return WritableBay(bay.number)
        return WritableBay(None) if len(mine) < BAYS else None

    def _of(self, rank: int) -> list[Bay]:
        return [bay for bay in self._bays.values() if bay.rank == rank]

    def _is_free(self, bay: Bay) -> bool:
        kept = bay.content in self.order[2:] or bay.unsummed is not None
        return not (bay.readers or kept)

    def _is_pending(self, bay: Bay, incarnation: int) -> bool:
        """True if its content may be safe soon: it was told, and nobody has said yet to keep it."""
        content = bay.content
        if content is None or content.attempt != attempt_of(incarnation):
            return False
        return content > self.safe

    def _grid(self, rank: int) -> "_Grid":
        return self._grids.setdefault(rank, _Grid())

    def _fits(self, bay: Bay, incarnation: int, nbytes: int) -> bool:
        # Much larger than wanted is a waste: another one is made.
        fits = nbytes <= bay.nbytes <= 2 * with_slack(nbytes)
        return bay.owner in (None, incarnation) and fits


def with_slack(nbytes: int) -> int:
    """The size of a bay that is made where so many bytes are wanted. The next snapshot holds some
    more, and memory that is taken anew for it costs more than all copying.
    """
    return nbytes + SLACK_LEAST + min(nbytes // 16, SLACK_MOST) // PAGE * PAGE


def order_of_start(former: Holding, attempt: int, restored: SnapshotId, *, parity: bool) -> Order:
    """The snapshots to keep as an attempt begins, of the keeper's last statement. Where nodes make
    parity for each other: beside what all go back to the one before it that was kept, as that may
    have all of its parity and this one none.
    """
    held = {SnapshotId(*one[:2]) for one in former.held} if parity and restored != NONE else set()
    kept = {SnapshotId(*one) for one in former.order[2:]}
    return attempt, 0, restored, max((held & kept) - {restored}, default=NONE)


def is_settled(holding: Holding) -> bool:
    """True if nothing that is held waits for an order, or for an answer to one."""
    _, _, safe, following = holding.order
    return following == NONE and all(held[:2] <= safe for held in holding.held)


def _age(bay: Bay) -> SnapshotId:
    return bay.content or NONE
