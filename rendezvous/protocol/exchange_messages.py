"""Messages between the exchanges of nodes (X), and between an exchange and its launcher (L).

Those between exchanges name what they are about in full, so an answer cannot be of anything else.
`Bytes` comes with a second frame. The first three travel over a unix socket.
"""

from dataclasses import dataclass

from rendezvous.protocol.snapshot_messages import Circle, Exchanging

Members = tuple[tuple[int, int], ...]
"""The ranks of the nodes of a group, by slot: the first one, and how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Employ:
    """L -> X: listen where others reach this machine that reach the endpoint of the job, at `host`
    and `port`; with the key of the job if it has one. Said first. `allowance`: what snapshots
    may have of this node's memory (`bays/allowance.py`). `inject`: kills that are ordered for this
    node while it makes parity.
    """

    key: bytes
    host: str
    port: int
    allowance: str
    inject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """X -> L: a sentence for the user."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """X -> X: describe the bays that make up the stream of a node with these ranks."""

    serial: int
    attempt: int
    step: int
    world: int
    first_rank: int
    nproc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """X -> X: (rank, bytes of its bay, bytes of that which are used); none: it is not known."""

    serial: int
    bays: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """X -> X: give me these bytes of the stream of a node with these ranks."""

    serial: int
    attempt: int
    step: int
    world: int
    first_rank: int
    nproc: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadParity:
    """X -> X: give me part number `part` of the parity that you have of this group, at `slot`.
    `column`: 0 for rows, 1 for diagonals.
    """

    serial: int
    attempt: int
    step: int
    world: int
    level: int
    members: Members
    slot: int
    column: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """X -> X: you have parity of this stripe. Give me part number `part` of the chunk of `slot`."""

    serial: int
    attempt: int
    step: int
    world: int
    level: int
    members: Members
    slot: int
    stripe: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """X -> X: what was asked for is in the next frame, with this crc32, or is not `there` now."""

    serial: int
    there: bool
    check: int = 0


ExchangeMessage = (
    Employ
    | Trouble
    | Describe
    | Described
    | Read
    | ReadParity
    | Rebuild
    | Bytes
    | Circle
    | Exchanging
)

Request = Describe | Read | ReadParity | Rebuild
"""What one exchange asks another for."""
