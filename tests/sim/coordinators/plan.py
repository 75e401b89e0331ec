"""One history of launchers that end one after another, on a machine that may be slow."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The launcher at `place` is not scheduled for so long."""

    place: int
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    names: tuple[str, ...]  # in the order of node ranks; the first has formed the job
    kills: tuple[tuple[float, int], ...]  # when, which
    leaves: tuple[tuple[float, int], ...] = ()  # those of them that say before that they leave
    delay_s: float  # of messages, a mean
    slice_s: float  # until a launcher that has something to do is scheduled, a mean
    stalls: tuple[Stall, ...] = ()
    over_s: float = 12.0

    @property
    def last(self) -> str:
        """The launcher that is not killed."""
        killed = {place for _, place in self.kills}
        return next(name for place, name in enumerate(self.names) if place not in killed)


def draw(seed: int, *, stalled: bool = False, leaving: bool = False) -> Plan:
    """All launchers but one are killed, in any order, with gaps of 0 to 2 s.

    `stalled`: single launchers also stand still, each for 0.1 to 1.5 s every now and then.
    `leaving`: some leave as planned, and end within 0.5 s of saying so.
    """
    rng = random.Random(f"seats {seed}")
    many = rng.choice((3, 4, 4, 4, 5, 6))
    names = tuple(f"{rng.getrandbits(32):08x}" for _ in range(many))
    at_s, kills = rng.uniform(2.0, 4.0), []
    for place in rng.sample(range(many), many - 1):
        kills.append((at_s, place))
        at_s += rng.uniform(0.0, 2.0)
    stalls, stall_s = [], 1.0
    while stalled and stall_s < at_s + 1.0:
        place, for_s = rng.randrange(many), rng.uniform(0.1, 1.5)
        stalls.append(Stall(place=place, at_s=stall_s, for_s=for_s))
        stall_s += rng.expovariate(1.0)
    choices = random.Random(f"leaves {seed}")
    leaves = tuple(
        (at - choices.uniform(0.02, 0.5), place)
        for at, place in kills
        if leaving and choices.random() < 0.4
    )
    return Plan(
        seed=seed, names=names, kills=tuple(kills), leaves=leaves,
        delay_s=rng.choice((0.0005, 0.005, 0.03)),
        slice_s=rng.choice((0.0005, 0.01, 0.05)), stalls=tuple(stalls), over_s=at_s + 6.0,
    )  # fmt: skip
