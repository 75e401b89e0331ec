"""Messages between a keeper and the processes of its node; only those with snapshots hold them.

K is the keeper, W a worker, L the launcher. They travel over a unix socket, one in each packet,
with a descriptor where that is said.
"""

from dataclasses import dataclass

from rendezvous.protocol.snapshot_messages import Holding, Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """W -> K: this process fills and reads the bays of `rank`. Said first."""

    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """W -> K: reserve memory for snapshot number `turn` of this attempt. Ranks count alike. The bay
    must have `nbytes`; its content is lost. With `ahead` for none yet, so that it is there in time.
    """

    nbytes: int
    turn: int = 0
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """K -> W, with the descriptor of a bay: write there. It has no header.

    `bays` are the numbers of all memory that the rank has now; what else it had is of no use.
    `worked_s`: processor time that the keeper has used so far.
    """

    nbytes: int
    bays: tuple[int, ...]
    worked_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """W -> K: the header of the bay with this number is there. Nobody answers."""

    bay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """W -> K: give me my part of this snapshot."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """K -> W, with the descriptor of a bay: it is there, and not written over before `Release`."""

    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """W -> K: this bay is not read any more. Nobody answers."""

    bay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoilt:
    """W -> K: what this bay holds is not what its checksums say. It is none from now on."""

    bay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """K -> W: not what was asked for; `reason` is a sentence for the user. `full`: there is too
    little memory."""

    reason: str
    full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """L -> K: this launcher keeps a second descriptor of each bay. Said first, and answered with
    all bays that there are. Said by the exchange of a node as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BayMade:
    """K -> L, with its descriptor: this bay exists. L -> K, likewise: keep it from now on.

    `owner`: the incarnation of the process that may have it mapped for writing, -1 for none.
    """

    rank: int
    owner: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BayDropped:
    """K -> L: this bay is of no use any more."""

    bay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """L -> K, and back: a sign of life."""

    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """L -> K: that is all that the keeper before had. Hear others from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOut:
    """L -> K: write what you have of this snapshot into a folder of `directory`, with `manifest`
    beside it, and remove what you have there that is older than `keep` (see `Persist`).
    """

    attempt: int
    step: int
    start: int
    directory: str
    manifest: str
    keep: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOut:
    """K -> L: that is done; or `failed` says why not."""

    attempt: int
    step: int
    start: int
    nbytes: int
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """L -> K: the part of `rank` is in this file; from now on it is one of snapshot (attempt, step)
    in memory. Who asks for it meanwhile waits.
    """

    path: str
    rank: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """L -> K: no start is to find these files any more: they are of unfit snapshots. Said again to
    the next keeper; what is not there any more is left out.
    """

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """L -> K: the job is over. Nothing is needed any more."""


KeeperMessage = (
    Attach
    | Reserve
    | Room
    | Filled
    | Fetch
    | Part
    | Release
    | Spoilt
    | Unavailable
    | Custody
    | BayMade
    | BayDropped
    | Heartbeat
    | Serve
    | WriteOut
    | WrittenOut
    | Load
    | SetAside
    | Dismiss
    | Holding
    | Keep
)
