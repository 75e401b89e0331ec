"""A hosted job whose launchers have snapshots."""

from recoverrun.launcher.network.frames import Envelope
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.formation_messages import Join, Start
from rendezvous.protocol.snapshot_messages import Held, Holding, Keep, Order
from rendezvous.snapshots.identity import NO_ORDER
from tests.unit.hosted_job import Job, of


class SnapshotJob(Job):
    """Launchers join with what their keepers have."""

    def __init__(self, max_restarts: int = 0, least: int = 1) -> None:
        """`least`: replicas without which the job would end."""
        policy = RecoveryPolicy(snapshot_parity=0, min_replicas=least)
        super().__init__(max_restarts=max_restarts, policy=policy)
        self.serial = 0
        self.held: dict[str, tuple[Held, ...]] = {"own": (), "far": ()}

    def keep(self, attempt: int, step: int, *names: str) -> list[Envelope]:
        told: list[Envelope] = []
        for name in names or ("own", "far"):
            ranks = range(2) if name == "own" else range(2, 4)
            self.held[name] = tuple((attempt, step, 4, rank, 10) for rank in ranks)
            told += self.state(name, NO_ORDER)
        for name, keep in of(told, Keep).items():
            assert isinstance(keep, Keep)
            told += self.state(name, keep.order)
        return told

    def state(self, name: str, order: Order) -> list[Envelope]:
        self.serial += 1
        holding = Holding(keeper=1, serial=self.serial, order=order, held=self.held[name])
        return self.coordinator_host.receive(name, holding, 0.1)

    def join(self, name: str, attempt: int = 0, now: float = 0.0) -> list[Envelope]:
        join = Join(
            run_id="job", node=name, incarnation=name, node_rank=-1, nproc=2, version="1",
            master=f"{name}:{attempt}", attempt=attempt, holding=self.held[name],
        )  # fmt: skip
        return self.coordinator_host.receive(name, join, now)


def starts_of(envelopes: list[Envelope]) -> set[tuple[int, int, str]]:
    starts = of(envelopes, Start).values()
    return {(s.attempt, s.restarts, s.restore) for s in starts if isinstance(s, Start)}
