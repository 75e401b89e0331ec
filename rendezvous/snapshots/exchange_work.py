"""The work of an exchange: units, each of which needs columns that other nodes have.

A unit is complete once all its columns are here. What is made of them depends on what it is for.
Columns are named as in `parity_groups`: chunks of a stripe by their slot, parity by -1 and -2.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rendezvous.protocol.exchange_messages import Bytes, Described, Request
from rendezvous.snapshots.member_stream import Extents
from rendezvous.snapshots.parity_code import Part
from rendezvous.snapshots.parity_groups import Member, ParityGroup, chunk_bytes

ROWS_COLUMN, DIAGONALS_COLUMN = -1, -2
"""Columns of parity, which no slot is called."""


class KeptSnapshot(NamedTuple):
    """A snapshot, with the number of ranks that it is of."""

    attempt: int
    step: int
    world: int


class ShareId(NamedTuple):
    """A node's parity of one snapshot: as `snapshot_messages.Share` has it."""

    attempt: int
    step: int
    world: int
    level: int
    slot: int
    members: tuple[Member, ...]

    @property
    def of(self) -> KeptSnapshot:
        return KeptSnapshot(self.attempt, self.step, self.world)

    @property
    def group(self) -> ParityGroup:
        return ParityGroup(self.level, self.members)


class NodeMemory(Protocol):
    """The memory of the keeper of this node, as far as its exchange reads and makes it."""

    def extents(self, of: KeptSnapshot, member: Member) -> Extents:
        """The bays with the parts of these ranks; () unless all are here and are kept."""

    def read(self, of: KeptSnapshot, rank: int, offset: int, nbytes: int) -> bytes | None:
        """The bytes of this rank's bay; None if it does not hold that any more."""

    def shares(self) -> tuple[ShareId, ...]:
        """All whole ones."""

    def share_extents(self, share: ShareId) -> tuple[Extents, ...] | None:
        """The extents by slot of the nodes that it is made of."""

    def read_share(self, share: ShareId, column: int, part: int) -> bytes | None:
        """Part of the parity: column 0 for rows, 1 for diagonals; checked."""

    def begin_share(self, share: ShareId, extents: tuple[Extents, ...], parts: int) -> str:
        """Take memory for so many parts a column; why not, if that cannot be."""

    def write_share(
        self, share: ShareId, column: int, part: int, data: Part, check: int | None
    ) -> None:
        """`check` is the CRC of a whole part, where it is known."""

    def end_share(self, share: ShareId) -> None:
        """Hand a whole share to the keeper."""

    def drop_share(self, share: ShareId) -> None:
        """Drop a share that is not made any more."""

    def begin_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        """Take memory for the parts of these ranks; why not, if that cannot be."""

    def write_bay(self, of: KeptSnapshot, rank: int, offset: int, data: Part) -> None: ...

    def end_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        """They are whole: check them, and hand them to the keeper; what is wrong with them."""

    def drop_bays(self, of: KeptSnapshot, ranks: Iterable[int]) -> None:
        """They are not made any more."""


class Want(NamedTuple):
    """A column that a unit needs: whom to ask for it, what, and how many bytes must come."""

    column: int
    node: int
    request: Request
    nbytes: int


STALLED_S = 5.0
"""A node of the group may not have its parts of an older snapshot any more, and never will: after
so long without word of them the share of another snapshot is made.
"""


@dataclass(slots=True, eq=False)
class Encoding:
    """The share of this node is being made."""

    share: ShareId
    nodes: tuple[int, ...]  # by slot
    began_at: float
    extents: dict[int, Extents] = field(default_factory=dict)  # by slot
    todo: Iterator["Unit"] | None = None  # once all extents are known
    drained: bool = False  # no more are to be begun
    open: int = 0  # units under way
    bytes_per_s: float = 0.0  # 0: as fast as it goes
    next_at: float = 0.0

    @property
    def stalls_at(self) -> float:
        """The time from which on it is not waited for any more, that a node tells of its parts."""
        return self.began_at + STALLED_S if self.todo is None else math.inf

    @property
    def longest(self) -> int:
        """Parts of the longest column of the stripes that it keeps."""
        return max((chunk_bytes(self.share.group, _bytes(one)) for one in self.extents.values()),
                   default=0)  # fmt: skip


@dataclass(slots=True, eq=False)
class Restoring:
    """Parts of ranks of this node are being brought here, or rebuilt."""

    of: KeptSnapshot
    level: int
    members: tuple[Member, ...]
    slot: int
    ranks: tuple[int, ...]  # those that are wanted, of this slot
    data: tuple[int, ...]  # by slot, the node that has it now
    parity: tuple[int, ...]
    extents: Extents = ()
    todo: Iterator["Unit"] | None = None
    drained: bool = False
    open: int = 0
    failed: int = 0  # times

    @property
    def group(self) -> ParityGroup:
        return ParityGroup(self.level, self.members)

    @property
    def wanted(self) -> Extents:
        """The bays that are to be brought."""
        return tuple(one for one in self.extents if one[0] in self.ranks)

    @property
    def is_there(self) -> bool:
        """True if another node has it as it is."""
        return self.data[self.slot] >= 0


@dataclass(slots=True, eq=False)
class Decoding:
    """Another node, or this one, wants a part of a lost chunk."""

    peer: str  # "": a unit of ours
    serial: int  # of the request


@dataclass(slots=True, eq=False)
class Unit:
    """`at` is where its result belongs: what that means is said by `work`."""

    work: Encoding | Restoring | Decoding
    wants: tuple[Want, ...]
    at: tuple[int, int]
    columns: dict[int, Part] = field(default_factory=dict)
    checks: dict[int, int] = field(default_factory=dict)  # of the columns: their CRC
    group: ParityGroup | None = None
    wanted: int = 0  # of Decoding: the slot
    stripe: int = 0
    missing: frozenset[int] = frozenset()  # slots whose chunks nobody has

    @property
    def is_complete(self) -> bool:
        return len(self.columns) == len(self.wants)

    @property
    def nbytes(self) -> int:
        return sum(want.nbytes for want in self.wants)


def _bytes(extents: Extents) -> int:
    return sum(used for _, _, used in extents)


@dataclass(frozen=True, slots=True)
class Ask:
    """Say this to the exchange of a node."""

    node: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """Say this to whoever has asked; `data` is its second frame."""

    peer: str
    message: Described | Bytes
    data: Part = b""


@dataclass(frozen=True, slots=True)
class Tell:
    """The launcher is told what there is to tell of this exchange, and `trouble` for the user."""

    trouble: str = ""


Effect = Ask | Answer | Tell
