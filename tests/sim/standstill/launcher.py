"""A simulated launcher: tells and looks as `recoverrun/launcher/node/progress_watch.py` does."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from recoverrun.launcher.node.progress_watch import AGAIN_S
from rendezvous.consensus.timeouts import BEAT_S
from rendezvous.membership.hang_events import Event, LookAt
from rendezvous.protocol.hang_messages import STILL_S, Evidence, Progress, Stack
from tests.sim.engine import Engine
from tests.sim.standstill.plan import Plan
from tests.sim.standstill.rank import Rank

DELAY_S = 0.005

STACK_S = 0.05
"""A control thread needs so long to show a stack."""


class Site(Protocol):
    plan: Plan
    engine: Engine
    ranks: dict[int, Rank]
    generation: int

    def thaws_at(self, node: int) -> float: ...
    def unheard(self, rank: int) -> None: ...
    def delayed(self, seconds: float) -> None: ...
    def to_machine(self, event: Event, delay_s: float) -> None: ...


@dataclass(slots=True)
class Told:
    serial: int
    at: float


class Launcher:
    """Of one node."""

    def __init__(self, site: Site, node: int) -> None:
        self._site = site
        self._node = node
        self._engine = site.engine
        self._told: dict[int, Told] = {}
        self._arrives_at = 0.0  # the last message: none overtakes another

    def begin(self) -> None:
        self._engine.after(self._engine.rng.random() * BEAT_S, self._beat)

    def asked(self, look: LookAt) -> None:
        self._engine.after(DELAY_S, self._look, look)

    def _frozen(self) -> float | None:
        thaws_at = self._site.thaws_at(self._node)
        return thaws_at if thaws_at > self._engine.now else None

    def _own(self) -> Iterator[Rank]:
        return (rank for rank in self._site.ranks.values() if rank.node == self._node)

    def _beat(self) -> None:
        if (thaws_at := self._frozen()) is not None:
            self._engine.at(thaws_at, self._beat)
            return
        now, site = self._engine.now, self._site
        for rank in self._own():
            told, age_s = self._told.get(rank.number), now - rank.since
            if age_s < STILL_S:
                if self._told.pop(rank.number, None) is None:
                    continue
            elif told is None or told.serial != rank.serial or now >= told.at + AGAIN_S:
                self._told[rank.number] = Told(rank.serial, now)
            else:
                continue
            self._send(rank.progress(age_s, site.plan.limit_s))
        self._engine.after(BEAT_S, self._beat)

    def _look(self, look: LookAt) -> None:
        if (thaws_at := self._frozen()) is not None:
            self._engine.at(thaws_at, self._look, look)
            return
        for rank in self._own():
            if rank.number not in look.ranks:
                continue
            evidence = Evidence(
                rank=rank.number, incarnation=0, hang=look.hang, look=look.look,
                stacks=look.stacks, serial=rank.serial,
                state=self._engine.rng.choice(rank.activity.states),
                cpu_ms=rank.computed_ms(self._engine.now), kernel="",
            )  # fmt: skip
            self._send(evidence)
            if look.stacks:
                delay_s = STACK_S + self._engine.jitter(0.01)
                self._engine.after(delay_s, self._show, rank, look)

    def _show(self, rank: Rank, look: LookAt) -> None:
        if (thaws_at := self._frozen()) is not None:
            self._engine.at(thaws_at, self._show, rank, look)
            return
        activity = rank.activity
        if not activity.shows or self._site.ranks.get(rank.number) is not rank:
            return
        digest = activity.digest or self._engine.rng.randrange(1000, 1 << 30)
        stack = Stack(
            rank=rank.number, generation=self._site.generation, hang=look.hang, look=look.look,
            digest=digest, frame=f"train.py:{rank.number} f", turns=activity.turns,
            within=activity.within, joined=rank.joined(),
        )  # fmt: skip
        self._send(stack)

    def _send(self, message: Progress | Evidence | Stack) -> None:
        engine, plan = self._engine, self._site.plan
        if engine.chance(plan.loss):
            self._site.unheard(message.rank)
            return
        delay_s = DELAY_S + engine.jitter(0.002)
        if engine.chance(plan.late):
            delay_s += engine.jitter(1.0)
        self._arrives_at = max(self._arrives_at, engine.now + delay_s)
        delay_s = self._arrives_at - engine.now
        self._site.delayed(delay_s)
        self._site.to_machine(message, delay_s)
