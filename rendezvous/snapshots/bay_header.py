"""The memory layout of a *bay*: one rank's part of one snapshot.

    header   one page: whose it is, of which snapshot, and how long what follows is; written last
    sums     a checksum of each PART of the content; written by the keeper once the header is there
    content  the pieces (tensors), then the table that says where each of them is, then the image

A bay counts only with a header whose own checksum agrees. Whoever is about to fill it takes the
header away first: so a writer that is killed anywhere leaves a bay that is whole, or one that is
none. What pieces, table and image mean is their writer's business.
"""

import struct
from dataclasses import dataclass
from zlib import crc32

from rendezvous.snapshots.identity import SnapshotId

PAGE = 4096
"""What begins in a bay begins at a multiple of this, as memory is mapped by pages."""

PART = 4 << 20
"""Bytes of the content that have a checksum of their own."""

MAGIC = b"RRBAY1\0\0"

_FIELDS = struct.Struct("<8sQQqqQQQI")  # and after it, the checksum of all that
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size
NO_HEADER = bytes(HEADER_BYTES)

_SUMS = struct.Struct("<IIqq")  # how many, their checksum, and the snapshot that they are of
_SUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class BayHeader:
    """The header of a whole bay. Sizes are in bytes."""

    rank: int
    world: int  # ranks of the job that the snapshot is of
    id: SnapshotId
    pieces: int
    table: int
    image: int
    notes_sum: int  # of table and image

    @property
    def content(self) -> int:
        """Bytes of pieces, table and image."""
        return self.pieces + self.table + self.image

    def pack(self) -> bytes:
        """The HEADER_BYTES with which a bay begins."""
        packed = _FIELDS.pack(
            MAGIC, self.rank, self.world, self.id.attempt, self.id.step,
            self.pieces, self.table, self.image, self.notes_sum,
        )  # fmt: skip
        return packed + _CHECK.pack(crc32(packed))


def parse(data: bytes, size: int) -> BayHeader | None:
    """The header of a bay of `size` bytes that begins with `data`. Never raises."""
    if len(data) < HEADER_BYTES:
        return None
    packed = data[: _FIELDS.size]
    (check,) = _CHECK.unpack_from(data, _FIELDS.size)
    magic, rank, world, attempt, step, pieces, table, image, notes = _FIELDS.unpack(packed)
    if magic != MAGIC or check != crc32(packed) or attempt < 0 or step < 0:
        return None
    header = BayHeader(
        rank=rank, world=world, id=SnapshotId(attempt, step),
        pieces=pieces, table=table, image=image, notes_sum=notes,
    )  # fmt: skip
    return header if content_begin(size) + header.content <= size else None


# ------------------------------------------------------------------------------------- places


def parts(content: int) -> int:
    """The number of checksums of `content` bytes."""
    return -(-content // PART)


def part(index: int, content: int) -> tuple[int, int]:
    """The begin and the end of part `index` of so much content, relative to the content."""
    return index * PART, min(content, (index + 1) * PART)


def bay_bytes(content: int) -> int:
    """The size of a bay that has room for `content` bytes."""
    least = PAGE + content
    while least - content_begin(least) < content:
        least += PAGE
    return -(-least // PAGE) * PAGE


def content_begin(size: int) -> int:
    """The offset at which the content of a bay of `size` bytes begins."""
    sums = _SUMS.size + _SUM.size * parts(size)
    return PAGE + -(-sums // PAGE) * PAGE


def content_room(size: int) -> int:
    """Bytes of content that a bay of `size` bytes has room for."""
    return max(0, size - content_begin(size))


# ------------------------------------------------------------------------------------- checksums


def pack_sums(sums: list[int], of: SnapshotId) -> bytes:
    """The checksums of a bay's parts, for PAGE bytes behind its beginning."""
    packed = b"".join(map(_SUM.pack, sums))
    return _SUMS.pack(len(sums), crc32(packed), *of) + packed


def sums_bytes(content: int) -> int:
    """The number of bytes that `pack_sums` makes for so much content."""
    return _SUMS.size + _SUM.size * parts(content)


def parse_sums(data: bytes, header: BayHeader) -> list[int] | None:
    """The checksums of the bay with `header`; None if there are none of this one."""
    if len(data) < sums_bytes(header.content):
        return None
    count, check, attempt, step = _SUMS.unpack_from(data)
    packed = data[_SUMS.size : _SUMS.size + _SUM.size * parts(header.content)]
    same = SnapshotId(attempt, step) == header.id and count == parts(header.content)
    if not same or crc32(packed) != check:
        return None
    return [found for (found,) in _SUM.iter_unpack(packed)]
