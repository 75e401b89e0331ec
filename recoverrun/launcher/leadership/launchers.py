"""What the coordinator host knows of the launchers of a job, and how it judges where that ends."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import ExitCode
from recoverrun.version import __version__
from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.membership.formation import Formation
from rendezvous.protocol.formation_messages import Peer, Start
from rendezvous.protocol.messages import ContextBuffer, Exited, Hello, Message, Stop

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


def members_of(start: Start) -> dict[str, Member]:
    """All launchers of an attempt, by incarnation, as each of them was told."""
    members, first = {}, 0
    for (incarnation, _, _, nproc), name in zip(start.peers, start.nodes, strict=True):
        members[incarnation] = Member(incarnation, name, range(first, first + nproc))
        first += nproc
    return members


def alternatives(peers: Iterable[Peer], out: Collection[str]) -> tuple[tuple[str, int], ...]:
    """Where a spare may ask for another coordinator: places of some members that are not `out`."""
    places = ((host, port) for name, host, port, _ in peers if host and port and name not in out)
    return tuple(islice(places, ALTERNATIVES))


def is_past(message: Message, attempt: int) -> bool:
    """True if it is of a worker of an earlier attempt."""
    if not isinstance(message, Hello | Exited | ContextBuffer):
        return False
    return message.incarnation != attempt


def eviction(member: Member | None) -> Stop:
    """For a launcher that was given up: its ranks have been replaced, it must not go on."""
    name = "this node" if member is None else f"node {member.name}"
    reason = f"{name} was silent for so long that the job went on without it"
    return Stop(exit_code=ExitCode.PARTITIONED, reason=reason, root_rank=-1)


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
