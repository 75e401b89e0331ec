"""The modelled data plane: collectives of one generation, and the lockstep inside a replica.

A collective completes only if all its members entered, and then at a different moment on each of
them. When a member dies or leaves in between, each other member that has not completed yet may
still complete (it had the data) or fail: both are drawn, so every split is reachable.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.sim.engine import Engine

Sum = dict[tuple[int, int, int], int]
"""How often each (step, slot, index) is in a sum."""


DEATH_SHOWS = 0.7
"""Share of members whose collective fails at a death: those connected to the dead one."""


@dataclass(frozen=True, slots=True)
class Key:
    """The `serial`-th collective of this kind that a rank enters in this generation."""

    kind: str  # "bucket <n>", "vote", "torch", "agree" or "mates"
    generation: int
    scope: int  # shard position, -1: the world
    serial: int


@dataclass(slots=True)
class Collective:
    key: Key
    members: tuple[int, ...]
    given: dict[int, object] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    due: dict[int, int] = field(default_factory=dict)  # rank -> number of its scheduled outcome
    result: object = None
    full: bool = False
    broken: bool = False
    completed: set[int] = field(default_factory=set)


class Member(Protocol):
    def completed(self, key: Key, result: object) -> None: ...
    def failed(self, key: Key) -> None: ...


@dataclass(slots=True)
class Stage:
    """Directed schedules: on which ranks the collectives of a step complete, before all others."""

    kind: str
    generation: int
    ranks: frozenset[int]


class Plane:
    """All collectives of a job. `on(rank, delay_s, call, *args)` reaches a rank that is alive."""

    def __init__(
        self,
        engine: Engine,
        *,
        collective_s: float,
        split: float,
        shown: float,
        members: Mapping[int, Member],
        on: Callable[..., None],
    ) -> None:
        self.engine = engine
        self.collective_s = collective_s
        self.split = split
        self.shown = shown  # share of abandoned collectives that fail on others instead of hanging
        self.members = members
        self.on = on
        self.live: dict[Key, Collective] = {}
        self.history: dict[Key, Collective] = {}
        self.gone: set[int] = set()
        self.stages: list[Stage] = []
        self.coverage: Counter[str] = Counter()

    # --------------------------------------------------------------------------- entering

    def enter(self, key: Key, members: tuple[int, ...], rank: int, value: object) -> None:
        collective = self.live.get(key)
        if collective is None:
            collective = Collective(key=key, members=members)
            self.live[key] = self.history[key] = collective
        assert collective.members == members, (
            f"INV-2: {key}: rank {rank} enters with {members}, others with {collective.members}"
        )
        assert rank not in collective.given, f"{key}: rank {rank} enters twice"
        collective.given[rank] = value
        collective.waiting.add(rank)
        if collective.broken or self.gone & set(members):
            if self.gone & set(members) or self.engine.chance(self.shown):
                self._fail_later(collective, rank)
        elif len(collective.given) == len(members):
            self._complete_later(collective)

    def _complete_later(self, collective: Collective) -> None:
        collective.full = True
        given = [collective.given[rank] for rank in collective.members]
        collective.result = combine(collective.key, given)
        stage = next((s for s in self.stages if _staged(s, collective.key)), None)
        wide = stage is None and self.engine.chance(self.split)
        for rank in collective.members:
            if stage is not None and rank not in stage.ranks:
                continue  # completes never, fails once a member leaves
            delay_s = self.collective_s + self.engine.jitter(self.collective_s)
            if wide and self.engine.chance(0.5):
                delay_s += self.engine.rng.choice((0.05, 0.4, 2.0)) * self.engine.rng.random()
            self._schedule(collective, rank, delay_s, self._complete)

    def _schedule(
        self, collective: Collective, rank: int, delay_s: float, call: Callable[..., None]
    ) -> None:
        number = collective.due.get(rank, 0) + 1
        collective.due[rank] = number  # the newest outcome counts
        self.on(rank, delay_s, call, collective, rank, number)

    def _complete(self, collective: Collective, rank: int, number: int) -> None:
        if not self._settle(collective, rank, number):
            return
        collective.completed.add(rank)
        self.members[rank].completed(collective.key, collective.result)

    def _fail(self, collective: Collective, rank: int, number: int) -> None:
        if self._settle(collective, rank, number):
            self.members[rank].failed(collective.key)

    def _settle(self, collective: Collective, rank: int, number: int) -> bool:
        if rank not in collective.waiting or collective.due.get(rank) != number:
            return False
        collective.waiting.discard(rank)
        self._forget(collective)
        return True

    def _forget(self, collective: Collective) -> None:
        over = not collective.waiting and (collective.full or collective.broken)
        if over and len(collective.given) == len(collective.members):
            self.live.pop(collective.key, None)

    # --------------------------------------------------------------------------- leaving

    def leave(self, rank: int, below: int) -> None:
        """`rank` aborts its collectives of generations before `below`."""
        for key in list(self.live):
            collective = self.live[key]
            if key.generation >= below or key.kind == "mates":
                continue
            if rank in collective.members and rank not in collective.completed:
                kind = key.kind.split()[0]
                self.coverage[f"{kind} completed by some only"] += bool(collective.completed)
                self._break(collective, rank, self.shown)

    def die(self, rank: int) -> None:
        """`rank` is dead or has ended: whoever still needs it may fail."""
        self.gone.add(rank)
        for collective in list(self.live.values()):
            if rank in collective.members:
                self._break(collective, rank, DEATH_SHOWS)

    def flake(self, rank: int) -> None:
        """The connections of `rank` fail, and nobody dies."""
        for collective in list(self.live.values()):
            if rank in collective.waiting and collective.key.kind != "mates":
                self._break(collective, rank, self.shown)
                self._fail_later(collective, rank)

    def _break(self, collective: Collective, rank: int, shows: float) -> None:
        """`rank` takes no more part: those who wait fail, hang, or have all that they need."""
        collective.waiting.discard(rank)
        stuck = sorted(collective.waiting)
        if collective.key.kind == "mates":
            stuck = []  # has all it needs, or hangs in its shard group until it is killed
        elif collective.full:
            stuck = [other for other in stuck if self.engine.chance(0.5)]
        failing = [other for other in stuck if self.engine.chance(shows)]
        if stuck and rank in self.gone and not failing:
            failing = stuck[:1]  # a closed connection is seen by somebody
        for other in stuck:
            collective.due[other] = collective.due.get(other, 0) + 1
            if other in failing:
                self._fail_later(collective, other)
        if not collective.full:
            collective.broken = True
        self._forget(collective)

    def _fail_later(self, collective: Collective, rank: int) -> None:
        if collective.key.kind == "mates":
            return
        collective.waiting.add(rank)
        self._schedule(collective, rank, self.engine.jitter(0.01), self._fail)


def combine(key: Key, given: list[object]) -> object:
    """The result: sums of weights for buckets, sums of ballots for votes."""
    if key.kind == "mates":
        assert all(value == given[0] for value in given), f"mates compute different things: {given}"
        return given[0]
    if key.kind == "agree":
        return None
    if key.kind == "vote":
        ballots = [value for value in given if isinstance(value, tuple)]
        assert len({len(ballot) for ballot in ballots}) == 1, f"ballots of {given}"
        return tuple(sum(column) for column in zip(*ballots, strict=True))
    total: Counter[tuple[int, int, int]] = Counter()
    for value in given:
        assert isinstance(value, dict), f"a bucket is given {value!r}"
        total.update(value)
    return dict(total)


def _staged(stage: Stage, key: Key) -> bool:
    return stage.generation == key.generation and key.kind.startswith(stage.kind)
