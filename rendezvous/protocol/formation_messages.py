"""Messages by which launchers form a job, and what a launcher without a place is told.

Part of the protocol that `messages` collects. L is a launcher, C the coordinator.
"""

from dataclasses import dataclass

from rendezvous.protocol.peer import Peer
from rendezvous.protocol.snapshot_messages import Held, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """L -> C: a launcher asks to take part with `nproc` workers."""

    run_id: str
    node: str
    incarnation: str
    node_rank: int  # -1: the coordinator chooses
    nproc: int
    version: str
    role: str = "default"
    master: str = ""  # host:port where its first worker could listen; no host: `address`
    attempt: int = 0  # the restart that this launcher is ready for
    script: str = ""  # what it runs, with a digest of the arguments
    arguments: str = ""
    content: str = ""  # a digest of the script's file
    torch: str = ""  # version, if known
    python: str = ""  # version of the launcher's, major and minor
    agreement: str = ""  # who decides who takes part: "" the launchers, or an etcd, by its id
    options: tuple[str, ...] = ()  # those by which all workers have to go alike
    listen: int = 0  # the port at which other launchers reach this one, 0 if none does
    holding: tuple[Held, ...] = ()  # the parts of snapshots in this node's memory
    shares: tuple[Share, ...] = ()  # the parity of others' in it
    starts: int = 0  # the highest `Start.number` that it knows of
    hindrance: str = ""  # why it ends at once, and takes no part
    address: str = ""  # whence this message came: filled in by whoever receives it


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """C -> L: the join is refused for good; `reason` is one sentence for the user."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """C -> L: the job is formed; start the workers with ranks `first_rank` .. + `nproc`.

    `succeeds`: it is formed since long, and a launcher has taken the place of a lost one. That one
    starts its workers as `StartAgain` has it; all others learn who it is.
    """

    generation: int
    node_rank: int
    nnodes: int
    first_rank: int
    nproc: int
    world_size: int
    master_addr: str
    nodes: tuple[str, ...]  # by node rank
    attempt: int = 0  # 0 for the first set of workers
    restarts: int = 0  # how many of those were failures
    first_role_rank: int = -1  # -1: roles are ranks
    role_world_size: int = -1
    leader: str = ""  # the launcher that coordinates, by its incarnation
    peers: tuple[Peer, ...] = ()  # by node rank
    folder: str = ""  # below `runs`, where launchers leave their journals; "": as each has it
    restore: str = ""  # ATTEMPT:STEP of the snapshot that all ranks begin from; "": from line 1
    succeeds: bool = False
    number: int = 1  # above all that its nodes, or directories of theirs, have seen
    asked: tuple[int, ...] = ()  # by node rank: those that the launchers asked for, -1 for any


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """C -> L: what a `Start` says to all alike, in a frame beside it."""

    nodes: tuple[str, ...]
    peers: tuple[Peer, ...]
    asked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """C -> L: end all workers, then join again for `attempt`; the job begins anew."""

    attempt: int
    reason: str
    root_rank: int
    back: int = -1  # to the top of which step, as far as is known; -1: to line 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """C -> L: the job runs and has all of its nodes. Stay, in case that it loses one.

    `places`: where other launchers are reached, in case that it is this one.
    """

    nnodes: int
    places: tuple[tuple[str, int], ...] = ()  # host and port


@dataclass(frozen=True, slots=True, kw_only=True)
class Strikes:
    """C -> L, and L -> C of a new term: this node was lost lately."""

    node: str
    address: str
    node_rank: int
    reason: str  # of the last loss
    lost: tuple[tuple[str, float], ...]  # which launchers of it, and how many seconds ago


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLeaves:
    """L -> L: these launchers leave as planned, or have left so: their ends are no losses.

    Said by whoever leaves, by C, and to C of a new term. `reasons` are theirs, "" where unknown.
    """

    launchers: tuple[str, ...]
    reasons: tuple[str, ...] = ()


LossNews = Strikes | PlannedLeaves
"""The messages of launchers about those who are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """L -> L: I do not coordinate; the launcher that does is reached there."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """C -> L at the endpoint of its job, which waits there for one to form: this one runs, and has
    fewer than `nnodes` nodes. It is joined at `listen` of the host that this came from.
    """

    run_id: str
    nnodes: int
    listen: int
    script: str  # this and what follows as in a `Join`
    arguments: str
    agreement: str = ""
    options: tuple[str, ...] = ()
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """L -> C and C -> L: this process is alive. Said where the register has no ping for it.

    `term`: as coordinator, since the leader changed that often; 0 from anybody else.
    """

    node: str
    incarnation: str
    term: int = 0
