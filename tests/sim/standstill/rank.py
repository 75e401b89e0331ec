"""A simulated worker: its page, what a look at it shows, and the script that it runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from rendezvous.protocol.hang_messages import Progress
from rendezvous.protocol.progress_page import NO_LIMIT_MS, Phase, key_of, members
from tests.sim.standstill.activities import COMPUTES, STALLS, Activity, Hang, Stall
from tests.sim.standstill.plan import Plan


@dataclass(frozen=True, slots=True)
class Work:
    """Compute, or stall, for so many seconds."""

    seconds: float
    activity: Activity = COMPUTES


@dataclass(frozen=True, slots=True)
class Join:
    """An operation with others; `seen`: the page tells of it."""

    channel: str
    ranks: tuple[int, ...]
    seen: bool = True
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hangs:
    """For ever."""

    kind: Hang


Act = Work | Join | Hangs


@dataclass(slots=True)
class Rank:
    """`since` is of the last mark; `acting_since` of what it is at."""

    number: int
    slot: int
    node: int
    serial: int = 1
    since: float = 0.0
    phase: Phase = Phase.FIRST
    step: int = 0
    begun: bool = False
    waits: Join | None = None
    joined_in: int = 0  # the generation in which it began to wait
    freed_at: float = 0.0  # when its last wait ended
    native: Join | None = None
    number_in: dict[str, int] = field(default_factory=dict)  # of operations, in this generation
    activity: Activity = COMPUTES
    before: Activity = COMPUTES
    acting_since: float = 0.0
    cpu_ms: float = 0.0
    hung: Hang | None = None
    debts: int = 0  # lost replicas to make up for
    script: Iterator[Act] = iter(())
    turn: int = 0  # planned calls of older turns are void

    on_mark: "Callable[[Rank], None]" = lambda rank: None  # before it

    def mark(self, now: float) -> None:
        self.on_mark(self)
        self.serial += 1
        self.since = now

    def at(self, phase: Phase, now: float) -> None:
        self.mark(now)
        self.waits = None
        self.phase = phase if self.begun else Phase.FIRST

    def act(self, activity: Activity, now: float) -> None:
        self.cpu_ms += self.activity.cpu_ms_per_s * (now - self.acting_since)
        self.before = self.activity
        self.activity, self.acting_since = activity, now

    def mostly(self, now: float) -> Activity:
        """The activity for most of the time since its mark."""
        before_s, acting_s = self.acting_since - self.since, now - self.acting_since
        return self.before if before_s > acting_s else self.activity

    def computed_ms(self, now: float) -> int:
        return int(self.cpu_ms + self.activity.cpu_ms_per_s * (now - self.acting_since))

    def joined(self) -> tuple[tuple[int, int], ...]:
        return tuple((key_of(channel), number) for channel, number in self.number_in.items())

    def progress(self, age_s: float, limit_s: float) -> Progress:
        wait = self.waits
        return Progress(
            rank=self.number, incarnation=0, serial=self.serial, age_ms=max(0, int(1000 * age_s)),
            phase=self.phase, step=self.step, index=0, waits=wait is not None,
            channel=key_of(wait.channel) if wait else 0,
            number=self.number_in[wait.channel] if wait else 0,
            generation=self.joined_in if wait else 0,
            limit_ms=int(1000 * limit_s) if wait and limit_s else NO_LIMIT_MS if wait else 0,
            ranks=members(wait.ranks) if wait else (0, 0, 0), what=wait.channel if wait else "",
        )  # fmt: skip


class Stage(Protocol):
    """The interface of a script to the run that it is in."""

    plan: Plan

    @property
    def now(self) -> float: ...
    def live(self) -> tuple[int, ...]: ...
    def hang(self, rank: Rank) -> Hang | None: ...
    def stall(self, rank: Rank) -> tuple[float, Stall] | None: ...
    def around(self, seconds: float) -> float: ...
    def alone(self, rank: Rank) -> bool: ...
    def committed(self, rank: Rank) -> None: ...


def script(stage: Stage, rank: Rank) -> Iterator[Act]:
    """A training loop with everything that may take its time."""
    plan = stage.plan
    everybody = tuple(range(plan.world))
    yield from _passes(stage, rank, Phase.FIRST, plan.first_s)
    yield Join("the first step", everybody, seen=False)
    rank.begun = True
    yield from _passes(stage, rank, Phase.PROOF, plan.step_s)
    for step in range(1, plan.steps + 1):
        rank.step = step
        first = step % plan.epoch == 1
        data = Phase.FIRST_DATA if first else Phase.DATA
        yield from _passes(stage, rank, data, 0.1 * plan.step_s + first * 2.0)
        compile_s = plan.compile_s if step == 1 else 0.0
        yield from _passes(stage, rank, Phase.MICROBATCH, 0.8 * plan.step_s + compile_s)
        yield from _shares(stage, rank)
        yield from _settles(stage, rank, step)
        yield from _between(stage, rank, step)


def _joins(rank: Rank, join: Join) -> Iterator[Act]:
    """Until it is over: members may have to meet anew."""
    over = False
    while not over:
        yield join
        over = rank.waits is None


def _passes(
    stage: Stage, rank: Rank, phase: Phase, seconds: float, activity: Activity = COMPUTES
) -> Iterator[Act]:
    rank.at(phase, stage.now)
    kind = stage.hang(rank)
    if kind is not None:
        yield Hangs(kind)
    stalled = stage.stall(rank)
    if stalled is not None:
        yield Work(stalled[0], STALLS[stalled[1]])
    yield Work(stage.around(seconds), activity)


def _shares(stage: Stage, rank: Rank) -> Iterator[Act]:
    """The forward and backward of a replica of several ranks need all of them."""
    shards, first = stage.plan.shards, rank.slot * stage.plan.shards
    if shards > 1:
        mates = tuple(range(first, first + shards))
        yield Join(f"the shards of replica {rank.slot}", mates, seen=False)


def _settles(stage: Stage, rank: Rank, step: int) -> Iterator[Act]:
    plan = stage.plan
    shard = rank.number % plan.shards
    peers = tuple(range(shard, plan.world, plan.shards))
    transfer_s = dict(plan.transfers_s).get(step, 0.01)
    joins = (
        Join(f"the reduction of shard {shard}", peers, transfer_s=transfer_s),
        Join("the vote", tuple(range(plan.world))),
    )
    rank.at(Phase.SETTLE, stage.now)
    for join in joins:
        over = False
        while not over:
            while rank.debts:
                rank.debts -= 1
                yield from _passes(stage, rank, Phase.REDO, plan.step_s)
                yield from _shares(stage, rank)
                rank.at(Phase.SETTLE, stage.now)
            yield join
            over = rank.waits is None
    stage.committed(rank)


def _between(stage: Stage, rank: Rank, step: int) -> Iterator[Act]:
    plan, everybody = stage.plan, tuple(range(stage.plan.world))
    yield from _passes(stage, rank, Phase.BETWEEN, 0.1 * plan.step_s)
    if plan.parted == (rank.number, step):
        yield from _joins(rank, Join("an extra barrier", everybody))
    if step % plan.epoch:
        return
    if plan.evaluation_s:
        yield from _passes(stage, rank, Phase.BETWEEN, plan.evaluation_s)
    if not plan.checkpoint_s:
        return
    if stage.alone(rank):
        activity = STALLS[plan.checkpoint]
        yield from _passes(stage, rank, Phase.ALONE, plan.checkpoint_s, activity)
        rank.at(Phase.BETWEEN, stage.now)
    if plan.barrier:
        yield from _joins(rank, Join("a barrier", everybody))
