"""The statements of single records of a journal, as values: ends, losses, recoveries, views."""

from dataclasses import dataclass
from typing import Literal

from rendezvous.protocol.views import Identity

DeathKind = Literal["exit", "signal", "exception", "hang", "node-lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of one worker, or of a node with all of its workers."""

    ts: float
    seq: int
    node: str  # that died, or on which it died
    rank: int  # -1: a node
    ranks: tuple[int, ...]
    pid: int
    kind: DeathKind
    code: int
    signal: int
    error: str
    reason: str
    ours: bool
    attempt: int
    incarnation: int
    life: int = 0  # of its replica, see `returns`
    failed_at: float  # not after `ts`: an exception is written down before its process ends
    starved: bool = False  # the kernel was out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    ts: float
    slot: int
    root_rank: int
    ranks: tuple[int, ...]
    generation: int
    reason: str
    attempt: int
    life: int = 0  # of the replica, that ends with it
    part: bool  # as a node tells it that did not coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The cost of one step without the replicas `slots`; it may cover several losses."""

    ts: float
    generation: int
    slots: tuple[int, ...]
    root_ranks: tuple[int, ...]
    step: int
    redone: int  # microbatches that were lost in this step and computed again
    identities: tuple[Identity, ...]  # of those, where the journal names them
    parts_ms: tuple[tuple[str, float], ...]
    total_ms: float
    attempt: int
    total: int  # microbatches of this step, 0 unknown
    live: int  # replicas that go on
    of: int  # so many that there were, 0 unknown
    part: bool  # as a node tells it that did not coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChange:
    ts: float
    generation: int
    live: tuple[int, ...]
    lost_ranks: tuple[int, ...]
    attempt: int
    part: bool  # as a node tells it that did not coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The way in which a launcher left, and the cause in the coordinator's view."""

    node: str
    code: int
    root_rank: int  # -1: nobody
    root_node: str  # "": not said
    reason: str

    def same(self, other: "End") -> bool:
        """True if another launcher left in the same way."""
        return (self.code, self.reason) == (other.code, other.reason)
