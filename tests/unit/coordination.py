"""A coordinator to talk to: what tests of it have in common."""

from rendezvous.coordinator.coordinator import Coordinator, Event, Received
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.protocol.effects import Effect, StopJob, ToRank
from rendezvous.protocol.messages import (
    Committed,
    Decision,
    Exited,
    Message,
    Promise,
    Report,
    Stop,
    Topology,
    Verdict,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import Identity

THREE = ((0,), (1,), (2,))
PAIRS = ((0, 1), (2, 3), (4, 5))


def verdict(rank: int, promise: Promise = "exact-samples") -> Verdict:
    return Verdict(rank=rank, generation=1, promise=promise, microbatches=1, reason="r")


class Job:
    """A coordinator that knows the topology; `tell` returns what it wants done.

    `begun`: all ranks have said what they promise.
    """

    def __init__(
        self,
        replicas: tuple[tuple[int, ...], ...] = THREE,
        minimum: int = 1,
        *,
        begun: bool = True,
        policy: RecoveryPolicy | None = None,
    ) -> None:
        world = tuple(rank for replica in replicas for rank in replica)
        self.machine = Coordinator(
            world=world, policy=policy or RecoveryPolicy(min_replicas=minimum)
        )
        self.now = 0.0
        self.tell(Topology(rank=0, generation=1, strategy="test", replicas=replicas))
        self.tell(*(verdict(rank) for rank in world if begun))

    def tell(self, *messages: Message) -> list[Effect]:
        return self.feed(*(Received(message=message) for message in messages))

    def feed(self, *events: Event) -> list[Effect]:
        return [effect for event in events for effect in self.machine.step(event, self.now)]

    def end(self, *ranks: int, code: int = -9, error: str = "", age_s: float = 0.0) -> list[Effect]:
        return self.tell(*(
            Exited(rank=rank, incarnation=0, node="a", code=code, ours=False, error=error,
                   detected_s=0.002, age_s=age_s)
            for rank in ranks
        ))  # fmt: skip


def told(effects: list[Effect], kind: type) -> dict[int, Message]:
    sends = [effect for effect in effects if isinstance(effect, ToRank)]
    return {send.rank: send.message for send in sends if isinstance(send.message, kind)}


def waits(
    rank: int, *done: Identity, generation: int = 2, step: int = 0, reduced: int = 0
) -> Report:
    """This rank waits at the commit point of `step`; without `done` it has one home microbatch."""
    return Report(
        rank=rank, generation=generation, step=step, phase="settle", microbatches=1,
        done=done or ((rank, 0),), begun=(), reduced=reduced,
    )  # fmt: skip


def applied(rank: int, *done: Identity, generation: int = 2, step: int = 0) -> Committed:
    redone = tuple(identity for identity in done if identity[0] != rank)
    return Committed(rank=rank, generation=generation, step=step, done=done, redone=redone,
                     total=3, digest="")  # fmt: skip


def decisions_of(effects: list[Effect]) -> dict[int, Decision]:
    found = {e.rank: e.message for e in effects if isinstance(e, ToRank)}
    return {rank: m for rank, m in found.items() if isinstance(m, Decision)}


def events(effects: list[Effect]) -> list[str]:
    return [effect.event for effect in effects if isinstance(effect, Record)]


def fields_of(effects: list[Effect], event: str) -> dict[str, object]:
    (record,) = (e for e in effects if isinstance(e, Record) and e.event == event)
    return dict(record.fields)


def stopped(effects: list[Effect]) -> Stop:
    (stop,) = (effect.stop for effect in effects if isinstance(effect, StopJob))
    return stop


def exit_code(effects: list[Effect]) -> int:
    return stopped(effects).exit_code
