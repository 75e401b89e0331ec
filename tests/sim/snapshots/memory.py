"""Memory of a simulated bay: symbols in the place of bytes. As bytes they are a few, of a length
that differs by rank.
"""

import struct
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


_BYTES = struct.Struct("<3q" + HALVES * "3q")
NOBODY: Symbol = (-1, -1, -1)


def packed(memory: Memory) -> bytes:
    """The content as bytes."""
    of = memory.header or (-1, -1)
    halves = [number for half in memory.halves for number in half or NOBODY]
    return _BYTES.pack(*of, memory.world, *halves) + bytes(13 * memory.rank)


def unpack(data: bytes, memory: Memory) -> bool:
    """Fill it with what `packed` has made; False if it is something else."""
    attempt, step, memory.world, *numbers = _BYTES.unpack_from(data)
    memory.header = SnapshotId(attempt, step)
    for half in range(HALVES):
        memory.halves[half] = tuple(numbers[3 * half : 3 * half + 3])
    memory.summed = memory.is_part(memory.header, memory.world)
    return memory.summed


class Numbers:
    """Of memories: no two have the same."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def make(self, rank: int, maker: int) -> Memory:
        return Memory(next(self._numbers), rank, maker)

    def next(self) -> int:
        return next(self._numbers)
