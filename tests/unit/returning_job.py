"""A coordinator whose lost replicas come back: what tests of it have in common."""

from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.arrival_messages import Arrival, Held, Ready, StartAgain
from rendezvous.protocol.effects import Effect, KillRanks, StartRanks
from rendezvous.protocol.messages import Exited, Hello
from rendezvous.protocol.views import View
from tests.unit.coordination import PAIRS, THREE, Job, applied, told, waits

__all__ = ["PAIRS", "THREE", "ReturningJob", "killed", "started"]


class ReturningJob(Job):
    """Of three replicas; all have committed step 0, so that any may be lost."""

    def __init__(
        self, replicas: tuple[tuple[int, ...], ...] = THREE, *, policy: RecoveryPolicy | None = None
    ) -> None:
        super().__init__(replicas, policy=policy or RecoveryPolicy(returns=True))
        self.replicas = replicas
        self.births = dict.fromkeys((rank for replica in replicas for rank in replica), 0)
        self.step = 0
        self.commit()

    @property
    def generation(self) -> int:
        return self.machine.generation

    @property
    def live(self) -> list[int]:
        return sorted(self.machine.members.live_ranks)

    def slot(self, rank: int) -> int:
        return next(s for s, ranks in enumerate(self.replicas) if rank in ranks)

    def kill(self, *ranks: int, error: str = "", code: int = -9) -> list[Effect]:
        """The newest processes of these ranks end."""
        return self.tell(*(
            Exited(rank=rank, incarnation=self.births[rank], node="a", code=code, ours=False,
                   error=error, detected_s=0.002)
            for rank in ranks
        ))  # fmt: skip

    def redo(self) -> list[Effect]:
        """The step in flight is decided and committed by all who are left."""
        generation, live = self.generation, self.live
        effects = self.tell(*(
            waits(rank, (self.slot(rank), 0), generation=generation, step=self.step)
            for rank in live
        ))  # fmt: skip
        return [*effects, *self.commit()]

    def commit(self) -> list[Effect]:
        """All members commit a step."""
        effects = self.tell(
            *(applied(rank, generation=self.generation, step=self.step) for rank in self.live)
        )
        self.step += 1
        return effects

    def lose(self, slot: int) -> list[Effect]:
        """A replica is lost, its processes are reaped, and the step is made good."""
        return [*self.kill(*self.replicas[slot]), *self.redo()]

    def greet(self, *ranks: int) -> list[Effect]:
        return self.tell(
            *(Hello(rank=r, incarnation=self.births[r], pid=1, torch="t") for r in ranks)
        )

    def start(self, *ranks: int) -> list[Effect]:
        """These ranks have new processes, which have their hooks."""
        for rank in ranks:
            self.births[rank] += 1
        return self.greet(*ranks)

    def ready(self, *ranks: int) -> list[Effect]:
        return self.tell(*(Ready(rank=rank, incarnation=self.births[rank]) for rank in ranks))

    def hold(self, *ranks: int, step: int | None = None) -> list[Effect]:
        """These members, or all, stand at the top of the next step."""
        generation, at = self.generation, self.step if step is None else step
        return self.tell(
            *(Held(rank=rank, generation=generation, step=at) for rank in ranks or self.live)
        )

    def bring_back(self, slot: int) -> list[Effect]:
        """From its processes' start on."""
        ranks = self.replicas[slot]
        return [*self.start(*ranks), *self.ready(*ranks), *self.hold()]


def started(effects: list[Effect]) -> list[StartAgain]:
    return [effect.start for effect in effects if isinstance(effect, StartRanks)]


def killed(effects: list[Effect]) -> list[tuple[int, ...]]:
    return [effect.kill.ranks for effect in effects if isinstance(effect, KillRanks)]


def invited(effects: list[Effect]) -> dict[int, tuple[int, ...]]:
    """The ranks that are told of others that are ready, with these."""
    found = told(effects, Arrival)
    return {r: message.ranks for r, message in found.items() if isinstance(message, Arrival)}


def joining(effects: list[Effect]) -> dict[int, tuple[tuple[int, ...], int]]:
    """The ranks that are told of others that join, with these and the step."""
    found = told(effects, View)
    return {
        r: (v.joined, v.from_step) for r, v in found.items() if isinstance(v, View) and v.joined
    }
