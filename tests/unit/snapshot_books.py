"""Books of snapshots of two nodes, whose keepers obey."""

from dataclasses import replace
from itertools import count

from rendezvous.coordinator.snapshots import SnapshotBook
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Holding, Order
from rendezvous.snapshots.identity import NO_ORDER

PLACES = {"a": range(2), "b": range(2, 4)}


class Book(SnapshotBook):
    """Of two nodes with two ranks each, whose keepers obey unless they are deaf."""

    def __init__(self) -> None:
        super().__init__()
        self.serials = count(1)
        self.orders: dict[str, Order] = dict.fromkeys(PLACES, NO_ORDER)
        self.deaf: set[str] = set()
        self.begin(0, PLACES, None, 0.0)

    def holds(self, name: str, *ids: tuple[int, int], keeper: int = 1, world: int = 4) -> list[str]:
        """The events that come of it; a keeper tells totals."""
        ranks = PLACES[name]
        held = tuple((*one, world, rank, 10) for one in ids for rank in ranks)
        serial = next(self.serials)
        return self.hears(
            name, Holding(keeper=keeper, serial=serial, order=self.orders[name], held=held)
        )

    def hears(self, name: str, holding: Holding) -> list[str]:
        """The same of a statement that may come late, with what follows of orders."""
        events = []
        for effect in self.hear(name, holding, 0.0):
            if isinstance(effect, Record):
                events.append(effect.event)
                continue
            for to in [effect.launcher] if effect.launcher else sorted(PLACES):
                if to not in self.deaf and effect.message.order > self.orders[to]:
                    self.orders[to] = effect.message.order
                    known = self._holdings.get(to)
                    if known is not None:
                        serial = next(self.serials)
                        events += self.hears(
                            to, replace(known, serial=serial, order=self.orders[to])
                        )
        return events

    def safe_again(self, *ids: tuple[int, int]) -> None:
        for name in PLACES:
            self.holds(name, *ids)


class Pair(Book):
    """The same of nodes that are a mirror of each other."""

    def __init__(self) -> None:
        SnapshotBook.__init__(self, 1)
        self.serials = count(1)
        self.orders = dict.fromkeys(PLACES, NO_ORDER)
        self.deaf = set()
        self.begin(0, PLACES, None, 0.0)

    def has(
        self, name: str, *ids: tuple[int, int], parity: tuple[tuple[int, int], ...] = (),
        now: float = 0.0,
    ) -> list[str]:  # fmt: skip
        """The same with parity; orders are obeyed before they are given."""
        members = ((0, 2), (2, 2))
        held = tuple((*one, 4, rank, 10) for one in ids for rank in PLACES[name])
        shares = tuple((*one, 4, 1, list(PLACES).index(name), members) for one in parity)
        holding = Holding(
            keeper=1, serial=next(self.serials), order=self._order, held=held, shares=shares
        )
        return [e.event for e in self.hear(name, holding, now) if isinstance(e, Record)]
