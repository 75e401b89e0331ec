"""Messages about snapshots in memory. L is a launcher, C the coordinator, W a worker.

What a keeper (K) says and is told besides is in `keeper_messages`.
"""

from dataclasses import dataclass

Held = tuple[int, int, int, int, int]
"""A part that is whole and has its checksums: attempt and step of the snapshot, how many ranks it
is of, which of them, and the bytes of its bay."""

Order = tuple[int, int, tuple[int, int], tuple[int, int]]
"""The attempt in which it is given, its number in that, and (attempt, step) of the snapshots that
are safe, and next. (-1, -1) is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """K -> L, L -> C: all that is whole in the memory of this node, and what of it is kept.

    A total. The one with the greater (keeper, serial) is the newer one. `order`: the newest `Keep`.
    """

    keeper: int
    serial: int
    order: Order
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """C -> L, L -> K: neither of two snapshots is written over: the one that is *safe*, as it can
    be had again whatever is lost, or is what all ranks go back to; and the one that is to be next.

    Keepers obey the newest order that they have heard.
    """

    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """W -> C: this rank stands at the top of `step`, as it did in `attempt`.

    `state_ms`: from when it asked for its part until all was in place.
    """

    rank: int
    incarnation: int
    attempt: int
    step: int
    state_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """C -> L: have your keeper write its parts of this snapshot to the directory of the user.

    `stamp`: of the coordinator's wall clock, in ms, by which it is known there. What is older than
    `keep` is removed; 0: nothing is.
    """

    attempt: int
    step: int
    stamp: int
    keep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """L -> C: the parts of this node are written, or `failed` says why not."""

    attempt: int
    step: int
    stamp: int
    nbytes: int
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """L -> C: the user ends the job, and a snapshot shall be on the disk. C -> W: take one more.

    The job ends with code 84 once that is written.
    """

    reason: str


SnapshotMessage = Holding | Keep | Restored | Persist | Persisted | Drain
