"""The part of a bay that this process may write to."""

import ctypes
import mmap
from itertools import pairwise
from pathlib import Path

import pytest

from rendezvous.bays import memory
from rendezvous.bays.memory import STRIDE
from rendezvous.snapshots.bay_header import PAGE

NBYTES = 2 * STRIDE + 3 * PAGE


def writable(mapped: mmap.mmap) -> int:
    """The number of bytes from the beginning that are, as the kernel tells; none behind them is."""
    first = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    parts = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        begin, end = (int(one, 16) - first for one in span.split("-"))
        if 0 <= begin < NBYTES:
            parts.append((begin, end, "w" in rights))
    assert all(one[2] or not other[2] for one, other in pairwise(parts)), parts
    return max((end for _, end, may in parts if may), default=0)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, 0),
        (1, PAGE),
        (PAGE, PAGE),
        (STRIDE + 1, STRIDE + PAGE),
        (NBYTES, NBYTES),
        (2 * NBYTES, NBYTES),
        (None, NBYTES),
    ],
)
def test_the_first_bytes_alone_may_be_written_to(most: int | None, expected: int) -> None:
    mapped = mmap.mmap(-1, NBYTES)
    memory.allow_writing(mapped, allowed=False)
    assert writable(mapped) == 0

    memory.allow_writing(mapped, allowed=True, most=most)

    assert writable(mapped) == expected
    memory.allow_writing(mapped, allowed=True)
    assert writable(mapped) == NBYTES
