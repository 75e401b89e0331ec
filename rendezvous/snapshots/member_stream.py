"""A node's part of a snapshot as one string of bytes: the beginnings of its bays, one after the
other, in the order of ranks. A beginning is all of a bay that is used: header, checksums and
content. So what is rebuilt is a bay that can be checked as any other.
"""

from collections.abc import Sequence
from typing import NamedTuple

Extent = tuple[int, int, int]
"""Of one bay: rank, bytes of its memory, bytes that are used."""

Extents = tuple[Extent, ...]


class Span(NamedTuple):
    """`nbytes` of a rank's bay from `offset` on, which are at byte `at` of what was asked for."""

    rank: int
    offset: int
    nbytes: int
    at: int


def stream_bytes(extents: Sequence[Extent]) -> int:
    return sum(used for _, _, used in extents)


def spans(extents: Sequence[Extent], begin: int, end: int) -> list[Span]:
    """The places of the bytes from `begin` to `end` of the stream."""
    found, first = [], 0
    for rank, _, used in extents:
        low, high = max(begin, first), min(end, first + used)
        if low < high:
            found.append(Span(rank, low - first, high - low, low - begin))
        first += used
    return found


def place(extents: Sequence[Extent], rank: int) -> tuple[int, int]:
    """The begin and the end of a rank's bay in the stream."""
    first = 0
    for one, _, used in extents:
        if one == rank:
            return first, first + used
        first += used
    raise AssertionError(f"rank {rank} is not of {extents}")
