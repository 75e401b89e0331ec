"""The nodes that keep parity for each other, and where it lies.

Theory of operation. What a node keeps of a snapshot is a string of bytes, its *stream*. The nodes
of a group have as many *stripes*. Stripe s has a chunk of each node but those where its parity
lies: row parity at slot s, and where two losses are to be survived diagonal parity at the slot
after that. So all nodes hold and send as much as each other. A stripe whose group has g nodes and
`level` columns of parity can be had as long as at most `level` of its g columns are missing.

    level 1   node 0: a0 a1 a2 | b0^c0^d0      node 1: b0 b1 b2 | a0^c1^d1      and so on

The row of nodes is dealt out with a stride, as neighbours share a rack. With two nodes a group is
a mirror.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

GROUP_MOST = 8
"""Nodes of a group."""

LEVEL_MOST = 2

Member = tuple[int, int]
"""The ranks of a node: the first one, and how many there are."""


class Chunk(NamedTuple):
    """The place of a stream's chunk that belongs to a stripe."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ParityGroup:
    """`members` by slot. `level`: nodes that may be lost at once."""

    level: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        size = len(self.members)
        assert 1 <= self.level <= LEVEL_MOST, f"a group survives {self.level} losses"
        assert self.level < size <= GROUP_MOST, f"a group of {size} nodes for {self.level} losses"

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def data_columns(self) -> int:
        """Chunks that a stripe has, and stripes that a node has chunks in."""
        return self.size - self.level

    def parity_slots(self, stripe: int) -> tuple[int, ...]:
        """The slots with its parity: rows first, then diagonals."""
        return tuple((stripe + column) % self.size for column in range(self.level))

    def data_slots(self, stripe: int) -> tuple[int, ...]:
        """The slots whose chunks it has, in the order of its columns."""
        parity = self.parity_slots(stripe)
        return tuple(slot for slot in range(self.size) if slot not in parity)

    def stripes_of(self, slot: int) -> tuple[int, ...]:
        """The stripes that a node has chunks in, in the order of its chunks."""
        return tuple(s for s in range(self.size) if slot not in self.parity_slots(s))

    def kept_at(self, slot: int) -> tuple[int, ...]:
        """The stripes whose parity lies at a node: rows of the first, diagonals of the second."""
        return tuple((slot - column) % self.size for column in range(self.level))

    def chunk(self, slot: int, stripe: int, length: int) -> Chunk:
        """The chunk of a node's stream, which has so many bytes, that belongs to this stripe."""
        index, size = self.stripes_of(slot).index(stripe), chunk_bytes(self, length)
        return Chunk(min(length, index * size), min(length, (index + 1) * size))

    def can_have(self, slot: int, data: Collection[int], parity: Collection[int]) -> bool:
        """True if the stream of `slot` is there or can be rebuilt, of slots that have theirs."""
        return slot in data or all(
            self.is_complete(stripe, data, parity) for stripe in self.stripes_of(slot)
        )

    def is_complete(self, stripe: int, data: Collection[int], parity: Collection[int]) -> bool:
        """True if no more columns of this stripe are missing than it has columns of parity."""
        there = sum(slot in data for slot in self.data_slots(stripe))
        return there + sum(slot in parity for slot in self.parity_slots(stripe)) >= (
            self.data_columns
        )


def chunk_bytes(group: ParityGroup, length: int) -> int:
    """The longest chunk of a stream of `length` bytes."""
    return -(-length // group.data_columns)


def dealt(nodes: int) -> list[tuple[int, ...]]:
    """The nodes 0, 1, ... in groups of at most GROUP_MOST, whose sizes differ by one at most."""
    many = -(-nodes // GROUP_MOST)
    return [tuple(range(first, nodes, many)) for first in range(many)]


def groups_of(nproc: Sequence[int], level: int) -> list[tuple[tuple[int, ...], ParityGroup]]:
    """The groups of nodes with so many ranks each: the members, and the group.

    None of a single node, and none if no loss of a node is to be survived. Of two nodes only one
    may be lost.
    """
    firsts = [sum(nproc[:node]) for node in range(len(nproc))]
    found = []
    for nodes in dealt(len(nproc)) if level else ():
        if len(nodes) > 1:
            members = tuple((firsts[node], nproc[node]) for node in nodes)
            found.append((nodes, ParityGroup(min(level, len(nodes) - 1), members)))
    return found
