"""The memory layout of a *share*: the parity of a group that one node has.

header   one page, written last: of which snapshot and group, and how long all is
parts    of its columns, one after the other; where nothing was written there are zeros
notes    msgpack: the ranks of the nodes of the group, their bays, and the checksums of the parts
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

import msgpack

from rendezvous.bays import memory
from rendezvous.protocol.number_bounds import RANK_MOST
from rendezvous.snapshots.bay_header import PAGE
from rendezvous.snapshots.exchange_work import ShareId
from rendezvous.snapshots.member_stream import Extents
from rendezvous.snapshots.parity_code import PART_BYTES, Part, padded

OF_NO_RANK = RANK_MOST
"""What a keeper is told as the rank of this memory: there is none with this number."""

MAGIC = b"RRSHR1\0\0"

_FIELDS = struct.Struct("<8sqqqqqqqI")
_CHECK = struct.Struct("<I")

NO_SUM = -1
"""Of a part that was never written: zeros."""


@dataclass(frozen=True, slots=True)
class SharePlan:
    """Sizes in bytes."""

    id: ShareId
    extents: tuple[Extents, ...]
    parts: int  # of each column

    @property
    def columns(self) -> int:
        return self.id.level

    def begin(self, column: int, part: int) -> int:
        """The offset at which a part begins."""
        return PAGE + (column * self.parts + part) * PART_BYTES

    def notes(self, sums: Sequence[int]) -> bytes:
        return bytes(msgpack.packb([self.id.members, self.extents, list(sums)]))

    @property
    def nbytes(self) -> int:
        room = len(self.notes([0xFFFFFFFF] * (self.columns * self.parts)))
        return self.begin(self.columns, 0) + -(-room // PAGE) * PAGE


@dataclass(slots=True)
class ShareInMemory:
    """One that is whole, or is being made. Owns its descriptor."""

    plan: SharePlan
    fd: int
    sums: list[int]
    zeros: int = field(default=crc32(bytes(PART_BYTES)))

    def write(self, column: int, part: int, data: Part, check: int | None = None) -> None:
        """`check` is the CRC of a whole part, where it is known."""
        os.pwrite(self.fd, data, self.plan.begin(column, part))
        if check is None:
            check = crc32(padded(data, PART_BYTES))
        self.sums[column * self.plan.parts + part] = check

    def finish(self) -> None:
        """All parts are there."""
        plan, notes = self.plan, self.plan.notes(self.sums)
        os.pwrite(self.fd, notes, plan.begin(plan.columns, 0))
        of = plan.id
        packed = _FIELDS.pack(
            MAGIC, of.attempt, of.step, of.world, of.level, of.slot, plan.parts, len(notes),
            crc32(notes),
        )  # fmt: skip
        os.pwrite(self.fd, packed + _CHECK.pack(crc32(packed)), 0)

    def read(self, column: int, part: int) -> bytes | None:
        """Part of a column; None if it is damaged, or there is no such."""
        if not (0 <= column < self.plan.columns and 0 <= part < self.plan.parts):
            return None
        data = os.pread(self.fd, PART_BYTES, self.plan.begin(column, part))
        known = self.sums[column * self.plan.parts + part]
        return data if crc32(data) == (self.zeros if known == NO_SUM else known) else None

    def close(self) -> None:
        os.close(self.fd)


def make(plan: SharePlan) -> ShareInMemory:
    """Memory for one that is to be made. Raises OSError."""
    return ShareInMemory(plan, memory.make(plan.nbytes), [NO_SUM] * (plan.columns * plan.parts))


def opened(fd: int) -> ShareInMemory | None:
    """The share in this memory, which takes `fd`; None if there is none, then it does not."""
    size = os.fstat(fd).st_size
    head = os.pread(fd, _FIELDS.size + _CHECK.size, 0)
    if len(head) < _FIELDS.size + _CHECK.size:
        return None
    packed = head[: _FIELDS.size]
    magic, attempt, step, world, level, slot, parts, length, check = _FIELDS.unpack(packed)
    if magic != MAGIC or _CHECK.unpack_from(head, _FIELDS.size) != (crc32(packed),):
        return None
    at = PAGE + level * parts * PART_BYTES
    notes = os.pread(fd, length, at) if 0 <= at <= at + length <= size else b""
    if crc32(notes) != check:
        return None
    members, extents, sums = msgpack.unpackb(notes, use_list=False)
    plan = SharePlan(ShareId(attempt, step, world, level, slot, members), extents, parts)
    return ShareInMemory(plan, fd, list(sums))
