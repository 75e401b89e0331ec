"""A bay says what it holds, or nothing."""

import pytest

from rendezvous.snapshots.bay_header import (
    HEADER_BYTES,
    NO_HEADER,
    PAGE,
    PART,
    BayHeader,
    bay_bytes,
    content_begin,
    content_room,
    pack_sums,
    parse,
    parse_sums,
    part,
    parts,
)
from rendezvous.snapshots.identity import SnapshotId

HEADER = BayHeader(
    rank=3,
    world=4,
    id=SnapshotId(1, 41),
    pieces=5 * PART + 1,
    table=10,
    image=20,
    notes_sum=7,
)
SIZE = bay_bytes(HEADER.content)


def test_a_header_comes_back_as_it_was() -> None:
    assert parse(HEADER.pack(), SIZE) == HEADER


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_half_a_header_is_none(at: int) -> None:
    torn = HEADER.pack()[:at] + NO_HEADER[at:]
    flipped = bytearray(HEADER.pack())
    flipped[at] ^= 1

    assert parse(torn, SIZE) is None
    assert parse(bytes(flipped), SIZE) is None


def test_what_is_larger_than_its_bay_is_none() -> None:
    assert parse(HEADER.pack(), SIZE - PAGE) is None


@pytest.mark.parametrize("content", [0, 1, PAGE, PART - 1, PART, PART + 1, 9 * PART, 10**10])
def test_a_bay_has_room_for_what_it_is_made_for(content: int) -> None:
    size = bay_bytes(content)

    assert content_room(size) >= content
    assert size - content < 3 * PAGE + 4 * parts(content)
    assert size % PAGE == content_begin(size) % PAGE == 0
    assert sum(end - begin for begin, end in (part(i, content) for i in range(parts(content)))) == (
        content
    )


def test_checksums_are_those_of_this_snapshot_or_none() -> None:
    sums = list(range(parts(HEADER.content)))
    packed = pack_sums(sums, HEADER.id)

    assert parse_sums(packed, HEADER) == sums
    assert parse_sums(pack_sums(sums, SnapshotId(1, 40)), HEADER) is None
    assert parse_sums(pack_sums(sums[:-1], HEADER.id) + bytes(4), HEADER) is None
    assert parse_sums(bytes(len(packed)), HEADER) is None
    assert parse_sums(packed[:-1], HEADER) is None
