"""The launchers of a job as the coordinator's host knows them, and how it judges their ends."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from recoverrun.config.run_config import RunConfig
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.version import __version__
from rendezvous.coordinator.job_events import NodeLost
from rendezvous.membership.formation import Formation
from rendezvous.membership.vacant_places import name_of, start_of, with_peer
from rendezvous.protocol.arrival_messages import Ready, StartAgain
from rendezvous.protocol.effects import Inspection, KillRanks, StartRanks, ToRank
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Beat, Join, Start
from rendezvous.protocol.hang_messages import Evidence, Inspect, Progress
from rendezvous.protocol.incarnations import attempt_of
from rendezvous.protocol.messages import ContextBuffer, Exited, Hello, Kill, Message, Stop
from rendezvous.protocol.records import Json, Record
from rendezvous.protocol.register_messages import Ping
from rendezvous.protocol.snapshot_messages import Held, Share
from rendezvous.store.replicated_store import Effect as StoreEffect
from rendezvous.store.replicated_store import Say

TRIES_ENOUGH = 3
"""As many attempts with the same end are no accident."""


ALTERNATIVES = 8
"""Members that a spare is told of."""


@dataclass(frozen=True, slots=True)
class Member:
    """A launcher that takes part."""

    incarnation: str
    name: str
    ranks: range

    def record(self, how: str = "") -> Record:
        """The journal's line of its coming."""
        nproc = len(self.ranks)
        fields: dict[str, Json] = {"nproc": nproc, "name": self.name}
        return Record("node.join", f"node {self.name} joins with {nproc} workers{how}", fields)

    def lost(self, reason: str) -> Record:
        """The journal's line of its loss."""
        return Record("node.lost", reason, {"name": self.name, "ranks": list(self.ranks)})


def members_of(start: Start) -> dict[str, Member]:
    """All launchers of an attempt, by incarnation, as each of them was told."""
    members, first = {}, 0
    for (incarnation, _, _, nproc), name in zip(start.peers, start.nodes, strict=True):
        members[incarnation] = Member(incarnation, name, range(first, first + nproc))
        first += nproc
    return members


class AttemptMembers:
    """The launchers that take part in an attempt, by incarnation, and those that were given up."""

    def __init__(self) -> None:
        self.known: dict[str, Member] = {}
        self.evicted: set[str] = set()  # members that were silent for too long, or have left
        self.silent_s: dict[str, float] = {}  # for how long those given up for it had been silent
        self.uninformed: set[str] = set()  # those that have not confirmed the stop
        self.start: Start | None = None  # as it is now
        self.changed = False  # places may have been taken since it formed
        self._hosts: dict[int, Member] = {}  # by rank

    def take(self, start: Start) -> None:
        """Note that these have been given their ranks."""
        self.known, self.start, self.changed = members_of(start), start, False
        self._hosts = {rank: member for member in self.known.values() for rank in member.ranks}

    def adopt(self, start: Start, gone: Collection[str]) -> None:
        """These had been given their ranks before we were asked; nodes of the names `gone` left."""
        self.take(start)
        self.evicted = {m.incarnation for m in self.known.values() if m.name in gone}
        self.changed = True

    @property
    def vacant(self) -> list[int]:
        """Node ranks whose launcher was given up."""
        peers = () if self.start is None else self.start.peers
        return [rank for rank, peer in enumerate(peers) if peer[0] in self.evicted]

    def replace(self, node_rank: int, join: Join) -> Member:
        """A launcher takes the place of one that was given up; returns it."""
        assert self.start is not None, "only an attempt has places"
        peer = (join.incarnation, join.address, join.listen, join.nproc)
        name = name_of(self.start, node_rank, join.node)
        self.take(with_peer(self.start, node_rank, peer, name, join.node_rank))
        self.changed = True
        return self.known[join.incarnation]

    def place_of(self, incarnation: str, leader: str) -> list[Envelope]:
        """Tell a launcher of its place, and who has the others, in an attempt that runs."""
        start = None if self.start is None else start_of(self.start, incarnation, leader)
        return [] if start is None else [Envelope(incarnation, NOBODY, start)]

    def forget(self, gone: Collection[str]) -> None:
        """The nodes of these names are not waited for any more."""
        for incarnation in [m.incarnation for m in self.known.values() if m.name in gone]:
            del self.known[incarnation]

    @property
    def present(self) -> set[str]:
        """The launchers that were not given up."""
        return self.known.keys() - self.evicted

    def loss(self, member: Member, reason: str) -> NodeLost:
        """The event that tells the coordinator that a member is lost."""
        return NodeLost(
            node=member.name,
            ranks=tuple(member.ranks),
            reason=reason,
            silent_s=self.silent_s.get(member.incarnation, 0.0),
        )

    def host(self, rank: int, *, evicted: bool = False) -> Member | None:
        """Return the member of this rank; None if it was evicted, unless asked for."""
        member = self._hosts.get(rank)
        if member is None or member.incarnation not in self.known:
            return None
        return None if member.incarnation in self.evicted and not evicted else member

    def to_rank(self, rank: int, message: Message) -> list[Envelope]:
        """A message for a worker, by way of its launcher, if that takes part."""
        host = self.host(rank)
        return [] if host is None else [Envelope(host.incarnation, rank, message)]

    def answer(self, effect: StoreEffect) -> list[Envelope]:
        """Return messages of the store: to one of its followers, or to the rank that called it."""
        if isinstance(effect, Say):
            return [Envelope(effect.to, NOBODY, effect.message)]
        return self.to_rank(effect.rank, effect)

    def carry_out(self, effect: ToRank | KillRanks | StartRanks | Inspection) -> list[Envelope]:
        """The messages that the coordinator's effect asks for."""
        match effect:
            case ToRank(rank=rank, message=message):
                return self.to_rank(rank, message)
            case KillRanks(kill=order) | StartRanks(start=order) | Inspection(inspect=order):
                return self.order(order)

    def order(self, order: Kill | StartAgain | Inspect) -> list[Envelope]:
        """Have the launchers of its ranks carry out an order. All remember who is started."""
        if isinstance(order, StartAgain):
            return [Envelope(name, NOBODY, order) for name in sorted(self.present)]
        names = {host.incarnation for rank in order.ranks if (host := self.host(rank))}
        return [Envelope(name, NOBODY, order) for name in sorted(names)]

    def remind(self, sender: str, message: Message, stop: Stop) -> list[Envelope]:
        """A launcher confirms a stop by sending it back; until then it is told again."""
        if isinstance(message, Stop):
            self.uninformed.discard(sender)
        known = sender not in self.uninformed or not isinstance(message, Beat | Ping)
        return [] if known else [Envelope(sender, NOBODY, stop)]

    def eviction(self, incarnation: str) -> Stop:
        """The word for a launcher that was given up: its ranks have been replaced, it must not go
        on.
        """
        member = self.known.get(incarnation)  # None once an attempt began without it
        name = "this node" if member is None else f"node {member.name}"
        reason = f"{name} was silent for so long that the job went on without it"
        return Stop(exit_code=ExitCode.PARTITIONED, reason=reason, root_rank=-1)

    def places(self, out: str) -> tuple[tuple[str, int], ...]:
        """The addresses at which a spare may ask for another coordinator: some present launchers,
        without `out`.
        """
        peers = () if self.start is None else self.start.peers
        known = (peer for peer in peers if peer[0] not in self.evicted | {out})
        places = ((host, port) for _, host, port, _ in known if host and port)
        return tuple(islice(places, ALTERNATIVES))


def is_past(message: Message, attempt: int) -> bool:
    """True if it is of a worker of an earlier attempt."""
    if not isinstance(message, Hello | Ready | Exited | ContextBuffer | Progress | Evidence):
        return False
    return attempt_of(message.incarnation) != attempt


def too_few(stop: Stop, left: int, least: int) -> Stop:
    """`stop`, with why the loss of a node ends the job."""
    return replace(stop, reason=f"{stop.reason}; {left} of at least {least} nodes are left")


def verdict(stop: Stop, tries: Sequence[str]) -> Stop:
    """`stop`, or the advice not to try again where every try has ended by the same exception."""
    words = {reason.partition(": ")[2] for reason in tries}
    if len(tries) < TRIES_ENOUGH or len(words) != 1 or "" in words:
        return stop
    reason = f"{stop.reason} (the same in {len(tries)} of {len(tries)} tries)"
    return replace(stop, exit_code=ExitCode.DO_NOT_REQUEUE, reason=reason)


def _planned(nodes: Sequence[tuple[int, tuple[Held, ...], tuple[Share, ...]]], attempt: int) -> str:
    """The snapshot from which all ranks begin this attempt, if any is held."""
    if not any(held for _, held, _ in nodes):
        return ""
    from rendezvous.snapshots.restore_plan import planned  # what only snapshots need

    return planned(nodes, attempt)


def _arranged(nodes: Sequence[tuple[int, tuple[Held, ...], tuple[Share, ...]]]) -> Sequence[int]:
    """The order in which they are given their ranks: that of the parts that they hold, if any."""
    if not any(held for _, held, _ in nodes):
        return range(len(nodes))
    from rendezvous.snapshots.restore_plan import arranged  # what only snapshots need

    return arranged(nodes)


def formation_of(
    config: RunConfig, own: str, *, folder: str, begun_at: float, over: bool = False
) -> Formation:
    """The rules by which a job forms, from the options of its launcher `own`."""
    return Formation(
        nnodes=config.nnodes,
        run_id=config.run_id,
        version=__version__,
        master_addr="",
        timeout_s=config.join_timeout_s,
        begun_at=begun_at,
        nnodes_least=config.nnodes_least,
        last_call_s=config.last_call_s,
        allow_mixed=config.allow_mixed,
        leader=own,
        folder=folder,
        over=over,
        restore=_planned,
        arrange=_arranged,
    )
