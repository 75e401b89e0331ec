"""One run, drawn from a seed: who trains how, who is slow, and who hangs."""

import random
from dataclasses import dataclass
from typing import Literal

from rendezvous.protocol.progress_page import Phase
from tests.sim.standstill.activities import HANGS, STALLS, Hang, Stall

Trouble = Literal["none", "hang", "two", "redo", "stuck", "parted"]

TROUBLES: tuple[Trouble, ...] = ("none", "hang", "hang", "hang", "two", "redo", "stuck", "parted")

HUNG_IN = (Phase.DATA, Phase.FIRST_DATA, Phase.MICROBATCH, Phase.BETWEEN, Phase.ALONE)


@dataclass(frozen=True, slots=True)
class HangAt:
    """`rank` hangs in `phase` of `step`; in REDO: as it makes up for a loss from `step` on."""

    rank: int
    step: int
    phase: Phase
    kind: Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Times are in seconds."""

    seed: int
    replicas: int
    shards: int
    nodes: int
    steps: int
    step_s: float
    first_s: float = 2.0
    compile_s: float = 0.0  # in the first microbatch after the first step
    epoch: int = 50  # steps
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint: Stall = "idle"
    barrier: bool = True  # after a checkpoint
    stall_chance: float = 0.0  # of a step, that one rank of all stalls
    stalls: tuple[Stall, ...] = ("computes",)
    stall_s: float = 0.5  # the shortest; Pareto
    stall_most_s: float = 600.0
    transfers_s: tuple[tuple[int, float], ...] = ()  # slow reductions: (step, seconds)
    limit_s: float = 0.0  # of the script; 0: none
    hang_limit_s: float = 0.0
    hangs: tuple[HangAt, ...] = ()
    stuck: tuple[int, int] = (0, 0)  # (step, how often its reduction does not end)
    torn: bool = False  # it ends for all of its members but one
    stopped: tuple[int, int] = (-1, 0)  # (rank, step in which it is stopped as it waits)
    parted: tuple[int, int] = (-1, 0)  # (rank, step after which it waits alone)
    loss: float = 0.0  # of a launcher's messages
    late: float = 0.0  # share of messages that are late by about a second
    frozen: tuple[tuple[int, float, float], ...] = ()  # launchers: (node, from, for)

    @property
    def world(self) -> int:
        return self.replicas * self.shards


def draw(seed: int) -> Plan:
    """A small run with every kind of trouble."""
    rng = random.Random(seed)
    shards = rng.choice((1, 1, 2, 4))
    replicas = rng.randint(2, min(16, 64 // shards)) if rng.random() < 0.9 else 64 // shards
    world, steps = replicas * shards, rng.randint(25, 60)
    trouble = rng.choice(TROUBLES)
    step_s = rng.choice((0.1, 0.5, 2.0, 4.0))
    at = rng.randint(5, steps - 3)
    # Slow collectives, and hangs that a limit of the script ends, have runs of their own.
    return Plan(
        seed=seed, replicas=replicas, shards=shards, nodes=rng.randint(1, min(4, world)),
        steps=steps, step_s=step_s,
        first_s=rng.choice((2.0, 2.0, 100.0)),
        compile_s=rng.choice((0.0, 0.0, 30.0)),
        epoch=rng.choice((7, 20, 100)),
        evaluation_s=rng.choice((0.0, 3.0, 20.0, 90.0)),
        checkpoint_s=rng.choice((0.0, 4.0, 30.0)),
        checkpoint=rng.choice(tuple(STALLS)), barrier=rng.random() < 0.5,
        stall_chance=rng.choice((0.0, 0.05, 0.2)),
        stalls=tuple(sorted(STALLS)), stall_most_s=rng.choice((4.0, 30.0, 100.0)),
        transfers_s=_transfers(rng, steps),
        limit_s=rng.choice((0.0, 0.0, 40.0, 1800.0)),
        hangs=_hangs(rng, trouble, world, shards, at),
        stuck=(at, rng.choice((1, 2, 9))) if trouble == "stuck" else (0, 0),
        parted=(rng.randrange(world), at) if trouble == "parted" else (-1, 0),
        loss=rng.choice((0.0, 0.0, 0.05)), late=rng.choice((0.0, 0.0, 0.05)),
        frozen=_frozen(rng),
        torn=rng.random() < 0.5,
        stopped=(rng.randrange(world), at) if trouble == "none" and rng.random() < 0.3 else (-1, 0),
    )  # fmt: skip


def _transfers(rng: random.Random, steps: int) -> tuple[tuple[int, float], ...]:
    if rng.random() < 0.7:
        return ()
    return tuple((step, rng.choice((3.0, 8.0, 20.0))) for step in rng.sample(range(3, steps), 2))


def _frozen(rng: random.Random) -> tuple[tuple[int, float, float], ...]:
    """Launchers that stand still for less time than they would be given up after."""
    if rng.random() < 0.5:
        return ()
    return tuple(
        (rng.randrange(4), rng.uniform(5.0, 200.0), rng.uniform(1.0, 4.0)) for _ in range(4)
    )


def _hangs(
    rng: random.Random, trouble: Trouble, world: int, shards: int, at: int
) -> tuple[HangAt, ...]:
    kinds = tuple(HANGS)
    if trouble not in ("hang", "two", "redo"):
        return ()
    phase = rng.choice(HUNG_IN)
    rank = 0 if phase is Phase.ALONE else rng.randrange(world)
    first = HangAt(rank, at, phase, rng.choice(kinds))
    others = [one for one in range(world) if one // shards != rank // shards]
    if trouble == "two":
        second = HangAt(rng.choice(others), at, Phase.MICROBATCH, rng.choice(kinds))
        return first, second
    if trouble == "redo":
        # Whoever makes up for the first is the lowest replica that is left.
        slot = 1 if rank // shards == 0 else 0
        return first, HangAt(slot * shards, at, Phase.REDO, rng.choice(kinds))
    return (first,)
