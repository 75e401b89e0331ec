"""The parity that a keeper has: of snapshots that are kept, and of no others."""

from collections.abc import Collection, Mapping

from rendezvous.protocol.snapshot_messages import Order, Share
from rendezvous.snapshots.identity import NO_ORDER, SnapshotId


class KeptShares:
    """The shares by the number of the memory that each is in."""

    def __init__(self) -> None:
        self._shares: dict[int, Share] = {}
        self._order: Order = NO_ORDER

    def add(self, number: int, share: Share) -> tuple[int, ...]:
        """Add a whole share that is here. Returns the numbers of the memory that is of no use any
        more.
        """
        same = tuple(other for other, one in self._shares.items() if one == share)
        for other in same:
            del self._shares[other]
        self._shares[number] = share
        return (*same, *self._dropped())

    def keep(self, order: Order, unfit: Collection[SnapshotId] = ()) -> tuple[int, ...]:
        """Keep what `Keep` says; the numbers of the memory that is of no use any more."""
        self._order = max(self._order, order)
        return self._dropped(unfit)

    @property
    def held(self) -> Mapping[int, Share]:
        return self._shares

    def statement(self) -> tuple[Share, ...]:
        """All that is here: a total."""
        return tuple(sorted(self._shares.values()))

    def _dropped(self, unfit: Collection[SnapshotId] = ()) -> tuple[int, ...]:
        if self._order == NO_ORDER:
            return ()  # All is handed over before it is known what is to stay.
        kept = {tuple(one) for one in self._order[2:]} - {tuple(one) for one in unfit}
        gone = tuple(number for number, one in self._shares.items() if one[:2] not in kept)
        for number in gone:
            del self._shares[number]
        return gone
