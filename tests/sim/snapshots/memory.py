"""Memory of a simulated bay: symbols in the place of bytes."""

from dataclasses import dataclass, field
from itertools import count

from rendezvous.snapshots.identity import SnapshotId

Symbol = tuple[int, int, int]
"""Rank, attempt and step of which this half of a state is."""

HALVES = 2


@dataclass(eq=False, slots=True)
class Memory:
    """It exists as long as somebody holds it; nobody needs to say so here."""

    number: int
    rank: int
    maker: int  # the incarnation that it was made for
    header: SnapshotId | None = None
    world: int = 0
    summed: bool = False
    halves: list[Symbol | None] = field(default_factory=lambda: [None] * HALVES)

    def is_part(self, found: SnapshotId, world: int) -> bool:
        """True if it is, whatever it says, what its rank was at the top of that step."""
        right = self.header == found and self.world == world
        return right and self.halves == [(self.rank, *found)] * HALVES


class Numbers:
    """Of memories: no two have the same."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def make(self, rank: int, maker: int) -> Memory:
        return Memory(next(self._numbers), rank, maker)
