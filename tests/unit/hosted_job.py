"""A job at its coordinator host, to talk to: what tests of that have in common."""

from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.leadership.first_failure import ACROSS_S
from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.recovery_policy import USUAL, RecoveryPolicy
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Formation
from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.incarnations import incarnation
from rendezvous.protocol.messages import (
    Exited,
    Message,
    Topology,
)
from rendezvous.protocol.records import Record
from rendezvous.snapshots.restore_plan import planned
from tests.unit.coordination import verdict
from tests.unit.stores import lone_store


class Job:
    """Launchers "own" (with the coordinator host) and "far" of two ranks each; "late" may come."""

    def __init__(
        self, *, max_restarts: int = 1, least: int = 2, policy: RecoveryPolicy = USUAL
    ) -> None:
        self.records: list[Record] = []
        formation = Formation(
            nnodes=2, run_id="job", version="1", master_addr="", timeout_s=600.0, begun_at=0.0,
            nnodes_least=least, last_call_s=30.0, restore=planned,
        )  # fmt: skip
        self.coordinator_host = CoordinatorHost(
            formation=formation, own="own", policy=policy, record=self.records.append,
            max_restarts=max_restarts, store=lone_store(), flapping_nodes=FlappingNodes(),
        )  # fmt: skip

    def join(self, name: str, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        join = Join(
            run_id="job", node=name, incarnation=name, node_rank=-1, nproc=2, version="1",
            master=f"{name}:{attempt}", attempt=attempt,
        )  # fmt: skip
        return self.coordinator_host.receive(name, join, now)

    def form(self, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        return [*self.join("own", attempt, now), *self.join("far", attempt, now)]

    def say(self, rank: int, message: Message, now: float = 0.1) -> list[Envelope]:
        return self.coordinator_host.receive("own" if rank < 2 else "far", message, now)

    def learn(self) -> None:
        replicas = ((0,), (1,), (2,), (3,))
        self.say(0, Topology(rank=0, generation=1, strategy="ddp", replicas=replicas))

    def promise(self, *ranks: int) -> None:
        for rank in ranks:
            self.say(rank, verdict(rank))

    def die(
        self,
        rank: int,
        attempt: int,
        error: str = "",
        now: float = 0.1,
        *,
        code: int = 7,
        step: int = -1,
    ) -> list[Envelope]:
        exited = Exited(
            rank=rank, incarnation=incarnation(attempt, 0), node="n", code=code, ours=False,
            error=error, detected_s=0.0, step=step,
        )  # fmt: skip
        told = self.say(rank, exited, now)
        return [*told, *self.coordinator_host.tick(now + ACROSS_S)]


def of(envelopes: list[Envelope], kind: type[Message]) -> dict[str, Message]:
    return {
        envelope.to: envelope.message
        for envelope in envelopes
        if isinstance(envelope.message, kind)
    }
