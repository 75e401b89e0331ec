"""Fault schedules: which rank is to be killed in which step and phase.

Grammar: entries joined by ",". `r3@step:12:reduce` kills rank 3 in step 12 (from 0) while it
reduces; `reduce:K` fixes the moment to just after bucket K's all-reduce was launched, without it
the middle bucket is meant. `random:SEED:N` stands for N kills drawn from that seed; it needs the
size of the world and the number of steps, so the command expands it before any worker reads it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

Phase = Literal["forward", "backward", "reduce", "vote", "between", "redo"]
PHASES: tuple[Phase, ...] = get_args(Phase)

MIDDLE = -1
"""The bucket of a kill in `reduce` that names none."""

_KILL = re.compile(r"r([0-9]{1,9})@step:([0-9]{1,9}):([a-z]+)(?::([0-9]{1,9}))?", re.ASCII)
_RANDOM = re.compile(r"random:([0-9]{1,18}):([0-9]{1,6})", re.ASCII)


class ScheduleError(ValueError):
    """The text is no fault schedule, or asks for the impossible. One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """`rank` sends itself SIGKILL in `step` at `phase`."""

    rank: int
    step: int
    phase: Phase
    bucket: int = MIDDLE


def parse(text: str) -> tuple[Kill, ...]:
    """The kills that `text` names, in its order; () for "". Raises ScheduleError."""
    return tuple(_kill(entry) for entry in _entries(text))


def expand(
    text: str, *, world: int, steps: int, phases: Sequence[Phase] = PHASES[:5]
) -> tuple[Kill, ...]:
    """As `parse`, with `random:SEED:N` drawn for a job of this size, and checked against it."""
    kills: list[Kill] = []
    for entry in _entries(text):
        drawn = _RANDOM.fullmatch(entry)
        if drawn:
            seed, n = int(drawn[1]), int(drawn[2])
            kills += expand_random(seed, n, world, steps, phases)
        else:
            kills.append(_kill(entry))
    for kill in kills:
        if kill.rank >= world or kill.step >= steps:
            raise ScheduleError(
                f"{render((kill,))} is outside of this run: {world} ranks, {steps} steps"
            )
    return tuple(kills)


def expand_random(
    seed: int, n: int, world: int, steps: int, phases: Sequence[Phase]
) -> tuple[Kill, ...]:
    """`n` kills of different ranks, in order of time, the same for the same arguments.

    One rank is always spared. Step 0 is too: nothing is protected before a first step showed how
    the script works.
    """
    if n >= world:
        raise ScheduleError(f"{n} random kills would leave none of {world} ranks")
    if n and (steps < 2 or not phases):
        raise ScheduleError(f"{steps} steps are too few for a kill after the first of them")
    draws = _Draws(seed)
    ranks = list(range(world))
    kills = []
    for _ in range(n):
        rank = ranks.pop(draws.below(len(ranks)))
        step = 1 + draws.below(steps - 1)
        kills.append(Kill(rank=rank, step=step, phase=phases[draws.below(len(phases))]))
    return tuple(sorted(kills, key=lambda kill: (kill.step, kill.rank)))


def render(kills: Sequence[Kill]) -> str:
    """The text that `parse` turns into `kills`."""
    return ",".join(
        f"r{kill.rank}@step:{kill.step}:{kill.phase}"
        + (f":{kill.bucket}" if kill.bucket != MIDDLE else "")
        for kill in kills
    )


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _kill(entry: str) -> Kill:
    if _RANDOM.fullmatch(entry):
        raise ScheduleError(f"{entry!r} must be expanded before a worker reads it")
    match = _KILL.fullmatch(entry)
    if match is None:
        raise ScheduleError(f"{entry!r} is not of the form r3@step:12:reduce or random:SEED:N")
    phase, bucket = match[3], match[4]
    if phase not in PHASES:
        raise ScheduleError(f"{entry!r}: a phase is one of {', '.join(PHASES)}, not {phase!r}")
    if bucket is not None and phase != "reduce":
        raise ScheduleError(f"{entry!r}: only reduce takes the number of a bucket")
    return Kill(
        rank=int(match[1]),
        step=int(match[2]),
        phase=cast(Phase, phase),
        bucket=MIDDLE if bucket is None else int(bucket),
    )


class _Draws:
    """SplitMix64 (Steele, Lea, Flood 2014): a seed means the same on every Python, for ever."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % bound


_MASK = (1 << 64) - 1
