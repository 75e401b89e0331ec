"""What the coordinator host knows of the launchers of a job, and how it judges where that ends."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import ExitCode
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.version import __version__
from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.membership.formation import Formation
from rendezvous.protocol.effects import Json, Record
from rendezvous.protocol.formation_messages import Beat, Peer, Start
from rendezvous.protocol.messages import ContextBuffer, Exited, Hello, Kill, Message, Stop
from rendezvous.protocol.register_messages import Ping

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

    def record(self) -> Record:
        """The journal's line of its coming."""
        nproc = len(self.ranks)
        fields: dict[str, Json] = {"nproc": nproc, "name": self.name}
        return Record("node.join", f"node {self.name} joins with {nproc} workers", fields)


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
        self.uninformed: set[str] = set()  # those that have not confirmed the stop
        self._peers: tuple[Peer, ...] = ()
        self._hosts: dict[int, Member] = {}  # by rank

    def take(self, start: Start) -> None:
        """These have been given their ranks."""
        self.known, self._peers = members_of(start), start.peers
        self._hosts = {rank: member for member in self.known.values() for rank in member.ranks}

    def adopt(self, start: Start, gone: Collection[str]) -> None:
        """These had been given their ranks before we were asked; nodes of the names `gone` left."""
        self.take(start)
        self.evicted = {m.incarnation for m in self.known.values() if m.name in gone}

    def forget(self, gone: Collection[str]) -> None:
        """The nodes of these names are not waited for any more."""
        for incarnation in [m.incarnation for m in self.known.values() if m.name in gone]:
            del self.known[incarnation]

    @property
    def present(self) -> set[str]:
        """Those that were not given up."""
        return self.known.keys() - self.evicted

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

    def kill(self, kill: Kill) -> list[Envelope]:
        """Have the launchers of these ranks end them."""
        names = {host.incarnation for rank in kill.ranks if (host := self.host(rank))}
        return [Envelope(name, NOBODY, kill) for name in sorted(names)]

    def remind(self, sender: str, message: Message, stop: Stop) -> list[Envelope]:
        """A launcher confirms a stop by sending it back; until then it is told again."""
        if isinstance(message, Stop):
            self.uninformed.discard(sender)
        known = sender not in self.uninformed or not isinstance(message, Beat | Ping)
        return [] if known else [Envelope(sender, NOBODY, stop)]

    def eviction(self, incarnation: str) -> Stop:
        """For a launcher that was given up: its ranks have been replaced, it must not go on."""
        member = self.known.get(incarnation)  # None once an attempt began without it
        name = "this node" if member is None else f"node {member.name}"
        reason = f"{name} was silent for so long that the job went on without it"
        return Stop(exit_code=ExitCode.PARTITIONED, reason=reason, root_rank=-1)

    def places(self, out: str) -> tuple[tuple[str, int], ...]:
        """Where a spare may ask for another coordinator: places of some present, without `out`."""
        known = (peer for peer in self._peers if peer[0] not in self.evicted | {out})
        places = ((host, port) for _, host, port, _ in known if host and port)
        return tuple(islice(places, ALTERNATIVES))


def is_past(message: Message, attempt: int) -> bool:
    """True if it is of a worker of an earlier attempt."""
    if not isinstance(message, Hello | Exited | ContextBuffer):
        return False
    return message.incarnation != attempt


def survives(job: Coordinator, ranks: range) -> bool:
    """True if enough replicas would be left without these ranks."""
    layout = job.members.layout
    if layout is None or not job.protected or job.stopped is not None:
        return False
    left = [slot for slot in job.members.live if not set(layout.replicas[slot]) & set(ranks)]
    return len(left) >= job.min_replicas


def verdict(stop: Stop, tries: Sequence[str]) -> Stop:
    """`stop`, or the advice not to try again where every try has ended by the same exception."""
    words = {reason.partition(": ")[2] for reason in tries}
    if len(tries) < TRIES_ENOUGH or len(words) != 1 or "" in words:
        return stop
    reason = f"{stop.reason} (the same in {len(tries)} of {len(tries)} tries)"
    return replace(stop, exit_code=ExitCode.DO_NOT_REQUEUE, reason=reason)


def formation_of(config: RunConfig, own: str, *, begun_at: float, over: bool = False) -> Formation:
    """How a job comes together, as the options of its launcher `own` describe it."""
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
        over=over,
    )
