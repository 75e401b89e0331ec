"""The cost of a heavy tail of stalls: alarms, and healthy ranks that are lost."""

from collections import Counter
from collections.abc import Iterator

from tests.sim.standstill.activities import STALLS, Stall
from tests.sim.standstill.plan import Plan
from tests.sim.standstill.world import World

RANKS = 8

A_RUN = 500
"""So many steps, and then another run begins: with what the last one has learned forgotten."""


def measure(
    stall: Stall, ranks: int, steps: int, chance: float = 0.01, most_s: float = 600.0
) -> Counter[str]:
    """`steps` steps in which one rank stalls with `chance`, Pareto 1.3 from half a second on."""
    coverage: Counter[str] = Counter()
    seed = 0
    while coverage["steps"] < steps:
        plan = Plan(
            seed=seed, replicas=ranks, shards=1, nodes=max(1, ranks // 8), steps=A_RUN, step_s=0.3,
            stall_chance=chance, stalls=(stall,), stall_most_s=most_s, epoch=A_RUN + 1,
        )  # fmt: skip
        outcome = World(plan).run()
        assert outcome.violation is None, outcome.violation
        coverage += outcome.coverage
        seed += 1
    return coverage


def table(steps: int) -> Iterator[str]:
    yield f"{'stall':10} {'alarms':>8} {'lost':>8}   per 10,000 steps of {RANKS} ranks"
    for stall in STALLS:
        coverage = measure(stall, RANKS, steps)
        per = 10_000 / coverage["steps"]
        alarms, lost = coverage["false alarms"] * per, coverage["healthy ranks lost"] * per
        yield f"{stall:10} {alarms:8.1f} {lost:8.1f}"
