"""Messages about snapshots in memory. L is a launcher, C the coordinator, W a worker, X the
exchange of a node, which makes parity.

What a keeper (K) says and is told besides is in `keeper_messages`.
"""

from dataclasses import dataclass

Held = tuple[int, int, int, int, int]
"""A part that is whole and has its checksums: attempt and step of the snapshot, how many ranks it
is of, which of them, and the bytes of its bay. As a node joins, parts in its directory are told in
the same way, with a number below -1 in the place of the attempt (`snapshots.identity.on_disk`)."""

Order = tuple[int, int, tuple[int, int], tuple[int, int]]
"""The attempt in which it is given, its number in that, and (attempt, step) of the snapshots that
are safe, and next. (-1, -1) is none."""


Share = tuple[int, int, int, int, int, tuple[tuple[int, int], ...]]
"""What a node has of the parity of its group: attempt, step and ranks of the snapshot; how many
nodes of the group may be lost; at which slot of the group this node was; and the ranks of all its
nodes by slot, each as the first one and how many there are."""

Source = tuple[int, tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]
"""Where the parts of a group are: how many may be lost, the ranks of its nodes by slot, and by slot
the node that has its data now, and its parity; -1 for nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """K -> L, L -> C: all that is whole in the memory of this node, and what of it is kept.

    A total. The one with the greater (keeper, serial) is the newer one. `order`: the newest `Keep`.
    `shares`: the parity that is here.
    """

    keeper: int
    serial: int
    order: Order
    held: tuple[Held, ...]
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """C -> L, L -> K: neither of two snapshots is written over: the one that is *safe*, as it can
    be had again whatever is lost, or is what all ranks go back to; and the one that is to be next.

    Keepers obey the newest order that they have heard. `unfit` are snapshots that nobody is to have
    again, (attempt, step) each.
    """

    order: Order
    unfit: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanging:
    """X -> L, L -> C: the exchange of this node can be called at `port`, and has heard the circle
    with that attempt and number. `unable`: (attempt, step) of the snapshot whose parity it has no
    memory for.
    """

    port: int
    heard: tuple[int, int] = (-1, 0)
    unable: tuple[int, int] = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """C -> L, L -> X: who makes parity with whom, by node rank. A total; `number` grows.

    `level`: nodes of a group that may be lost. `ranks` and `ports` of each node, and `hosts`, which
    each launcher fills in for its own exchange. `sources`: where the parts of the snapshot lie that
    all ranks begin from (attempt, step), where some of them are to be brought or rebuilt.
    """

    attempt: int
    number: int
    level: int
    ranks: tuple[int, ...]
    ports: tuple[int, ...]
    of: tuple[int, int] = (-1, -1)
    sources: tuple[Source, ...] = ()
    node: int = -1
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """W -> C: this rank stands at the top of `step`, as it did in `attempt`.

    `state_ms`: from when it asked for its part until all was in place. `failed`: it does not, as
    its part cannot be had or is damaged; this process ends. `unfit`: nor will it with what parity
    rebuilds, as the script does not come to the same state with this snapshot.
    """

    rank: int
    incarnation: int
    attempt: int
    step: int
    state_ms: float
    failed: str = ""
    unfit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """C -> L: have your keeper write its parts of this snapshot to the directory of the user.

    (`start`, `step`) is its name there: `start` is the number of the attempt that writes it, of all
    that have written there (`Start.number`). What is older than `keep`, such a name, is removed.
    """

    attempt: int
    step: int
    start: int
    keep: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """L -> C: the parts of this node are written, or `failed` says why not."""

    attempt: int
    step: int
    start: int
    nbytes: int
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """L -> C: the user ends the job, and a snapshot shall be on the disk. C -> W: take one more.

    The job ends with code 84 once that is written.
    """

    reason: str


SnapshotMessage = Holding | Exchanging | Circle | Keep | Restored | Persist | Persisted | Drain
