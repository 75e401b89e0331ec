"""Runs with hangs and slow ranks: who hangs is lost in time, and nobody without a cause."""

from collections import Counter

import pytest

from tests.sim.mutants import planted
from tests.sim.standstill.heavy import measure
from tests.sim.standstill.mutants import BUGS, Bug
from tests.sim.standstill.world import World, simulate

SEEDS = (*range(30), 49, 91)
RARE = (
    "condemned: stopped", "condemned: still", "condemned: none", "all quiet", "parted",
    "stuck for good", "meets anew", "cleared", "slow operations torn", "hang in REDO",
    "hang in ALONE", "hang in FIRST_DATA", "healthy ranks lost: idle",
)  # fmt: skip


def test_runs_lose_whoever_hangs_in_time_and_nobody_without_a_cause() -> None:
    coverage: Counter[str] = Counter()
    wrong = []
    for seed in SEEDS:
        outcome = simulate(seed)
        coverage += outcome.coverage
        if outcome.violation is not None:
            wrong.append(f"python -m tests.sim.standstill --seed {seed}: {outcome.violation}")

    assert not wrong, "\n".join(wrong)
    assert not [path for path in RARE if not coverage[path]]


@pytest.mark.parametrize("stall", ["computes", "pool", "polls", "disk"])
def test_a_healthy_rank_that_is_not_idle_is_lost_at_ten_times_its_limit_alone(stall: str) -> None:
    coverage = measure(stall, ranks=4, steps=500, chance=0.2, most_s=49.0)  # type: ignore[arg-type]

    assert coverage["false alarms"]
    assert not coverage["healthy ranks lost"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.code.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    found = set()
    with planted(bug.code):
        for plan in bug.plans:
            violation = World(plan).run().violation
            found |= {violation.checker} if violation is not None else set()

    assert bug.code.checker in found, f"{bug.code.name}: {bug.code.checker} is silent, {found}"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.code.name)
def test_the_run_that_catches_a_bug_is_clean_without_it(bug: Bug) -> None:
    wrong = [outcome.violation for plan in bug.plans if (outcome := World(plan).run()).violation]

    assert not wrong
