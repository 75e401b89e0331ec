"""Every message that recoverrun's processes exchange, as a frozen dataclass.

A message says where things stand (totals, identities, positions), never what to add: each of them
may arrive twice, late, or not at all. Each carries the generation it was sent in; the coordinator
fences old generations in one place, before any handler sees them. `codec` turns these classes into
msgpack and back under a strict schema derived from the annotations below, so the annotations are
the protocol; docs/protocol.md explains it.

Directions: W worker, L launcher (one per node), C coordinator (lives in one of the launchers).
"""

from dataclasses import dataclass, field
from typing import Literal

from rendezvous.protocol.arrival_messages import Arrival, Held, Ready, StartAgain
from rendezvous.protocol.formation_messages import (
    Beat,
    Join,
    PlannedLeaves,
    Redirect,
    Refusal,
    Restart,
    Roster,
    Running,
    Spare,
    Start,
    Strikes,
)
from rendezvous.protocol.hang_messages import Evidence, Inspect, Progress, ShowStack, Stack
from rendezvous.protocol.journal_messages import JournalCall, JournalPiece
from rendezvous.protocol.register_messages import (
    Accept,
    Accepted,
    ConfigurationChange,
    Copied,
    Copy,
    Granted,
    Lead,
    NewConfiguration,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Rejected,
    Statement,
    Testimony,
    Whole,
)
from rendezvous.protocol.snapshot_messages import SnapshotMessage
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.protocol.views import Identity, View

Phase = Literal["compute", "settle", "done"]
Promise = Literal["exact-samples", "equal-count", "rollback", "unprotected"]


# ---------------------------------------------------------------------------- life of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """W -> C: the hooks are installed in this worker."""

    rank: int
    incarnation: int
    pid: int
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """W -> C: the script's own process groups show these replicas.

    `replicas[slot]` are the global ranks of that slot in shard order. `strategy` names the file of
    recoverrun/worker/strategies that serves the script.
    """

    rank: int
    generation: int
    strategy: str
    replicas: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """W -> C: what the proof after the first step showed on this rank."""

    rank: int
    generation: int
    promise: Promise
    microbatches: int  # per replica and step, as seen in the first step
    reason: str
    script_step: int = -1  # the script's own number of that step, from 0; -1: not seen
    script_steps: int = -1  # from that step on, as the script's loops show; -1: not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """W -> C: something a person should read once in the journal."""

    rank: int
    generation: int
    event: str
    reason: str


UNSAID = "another rank says why"
"""The end of a notice's reason if its rank knows only that another one has a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFault:
    """W -> C: a collective failed on this rank. A hint, never a verdict: only launchers judge."""

    rank: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """W -> C: the script ended normally after `step` committed steps.

    Until then the rank took part in `generation`: who still has to meet others does not wait.
    Since its last step it passed by what rank 0 does alone, first at the place `passed_by`; in the
    place of rank 0 it `failed` first at that place, with that error.
    """

    rank: int
    generation: int
    step: int
    passed_by: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """L -> C: the kernel said that this worker is gone. `code` < 0 is the signal's number."""

    rank: int
    incarnation: int
    node: str
    code: int
    ours: bool  # this launcher had sent the signal itself
    error: str  # last exception of the worker, one line, or ""
    detected_s: float  # since the process died, as far as the launcher can tell
    age_s: float = 0.0  # since it failed: since it wrote down its exception, or else since it died
    step: int = -1  # that it was at, as far as its page tells
    starved: bool = False  # by SIGKILL, as the kernel was out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBuffer:
    """L -> C: what a worker left in its shared memory: the newest contexts, oldest first, the marks
    of its latest microbatches, and those that it may have died of (`shared_memory.Begun`).
    """

    rank: int
    incarnation: int
    contexts: tuple[bytes, ...]
    marks: bytes = b""
    begun: tuple[tuple[int, int, int, int, int], ...] = ()
    by_itself: bool = False  # it hung, or ended by its own doing; nobody else may have ended it
    buffers: bytes = b""  # those that other ranks take over from it


# ---------------------------------------------------------------------------- generations


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """W -> C: where this rank stands in `generation`, as a total.

    `done` are the identities in the accumulators of `step`; it is final for the generation once
    `phase` is "settle" (the script waits at the commit point). `begun` is what it re-executes right
    now and cannot leave: its shard mates must join it. `reduced` is the generation in which this
    rank holds every bucket of `step` reduced, 0 if none.
    """

    rank: int
    generation: int
    step: int
    phase: Phase
    microbatches: int  # of the script's own loop in this step; 0 while unknown
    done: tuple[Identity, ...]
    begun: tuple[Identity, ...]
    reduced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """C -> W: what becomes of `step` in `generation`.

    "commit": every survivor held every bucket in generation `held`; apply those sums.
    "redo": compute `targets[replica]`, reduce everything anew in this generation.
    "level": compute `targets[replica]`, which shard mates have begun, then report again.
    """

    generation: int
    step: int
    verdict: Literal["commit", "redo", "level"]
    held: int
    targets: tuple[tuple[int, tuple[Identity, ...]], ...]  # (replica, identities it computes)
    suspects: tuple[Identity, ...] = ()
    """Microbatches that a rank had begun which ended by its own doing: tried in a copy first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostContexts:
    """C -> W: what lost ranks of this worker's shard position left, for re-execution."""

    generation: int
    contexts: tuple[tuple[int, tuple[bytes, ...]], ...]  # (lost rank, its contexts)
    marks: tuple[tuple[int, bytes], ...] = ()  # (lost rank, the marks of its microbatches)
    begun: tuple[tuple[int, tuple[tuple[int, int, int, int, int], ...]], ...] = ()
    """(lost rank, the microbatches that it may have died of)"""
    buffers: tuple[tuple[int, bytes], ...] = ()  # (lost rank, those that others take over from it)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """W -> C: this rank has applied `step`; `done` is what its replica put into the sum.

    Of that `redone` are microbatches beyond its share as the step began: somebody was lost in it.
    Never waited for by anybody. Times are milliseconds of this step on this rank.
    """

    rank: int
    generation: int
    step: int
    done: tuple[Identity, ...]
    redone: tuple[Identity, ...]
    total: int  # B, as the data plane's vote counted it
    digest: str  # of the parameters before the step's update if it is checked, else ""
    phases: tuple[tuple[str, float], ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Discord:
    """W -> C: the script's ranks do different things, which no transaction can be made of."""

    rank: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """W -> C: others did not come within the script's own limit of time; the script is told.

    If this rank ends by that error, nobody is lost: the run ends, as under torchrun.
    """

    rank: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """W -> C: an invariant does not hold; the job must stop with exit code 85."""

    rank: int
    generation: int
    invariant: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """C -> L: end all workers of your node and leave with this exit code.

    It names the cause, so that every node can say the same.
    """

    exit_code: int
    reason: str
    root_rank: int  # -1: no single rank is to blame
    node: str = ""  # of the root rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """L -> C: the user ends this node's part; its workers are ending already.

    The job goes on without it where it can, and else ends with this code.
    """

    node: str
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """C -> L: end these ranks now; their replica has left.

    `births`: of their processes that are meant, in the order of `ranks`. One that has not begun
    does not begin any more. `hung`: those ranks that hang: the microbatch that they are in is to
    blame.
    """

    generation: int
    ranks: tuple[int, ...]
    births: tuple[int, ...]
    reason: str
    hung: tuple[int, ...] = ()


Message = (
    Join
    | Refusal
    | Start
    | Roster
    | Restart
    | Spare
    | Strikes
    | PlannedLeaves
    | Redirect
    | Running
    | Beat
    | Hello
    | Topology
    | Verdict
    | Notice
    | PeerFault
    | Farewell
    | Exited
    | ContextBuffer
    | StartAgain
    | Ready
    | Arrival
    | Held
    | View
    | Report
    | Decision
    | LostContexts
    | Committed
    | Broken
    | Discord
    | Overdue
    | Stop
    | Leaving
    | Kill
    | Progress
    | Inspect
    | Evidence
    | ShowStack
    | Stack
    | Statement
    | StoreCall
    | StoreAnswer
    | Copy
    | Whole
    | Copied
    | Prepare
    | Prepared
    | Rejected
    | Accept
    | Accepted
    | NewConfiguration
    | ConfigurationChange
    | Lead
    | Granted
    | Ping
    | Pong
    | Testimony
    | JournalCall
    | JournalPiece
    | SnapshotMessage
)
