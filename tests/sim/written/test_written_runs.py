"""Histories of snapshots on disks: what was there is gone on from, by all ranks alike."""

import pytest

from tests.sim.mutants import Mutant, planted
from tests.sim.sweep import swept
from tests.sim.written.mutants import BUGS
from tests.sim.written.world import simulate_alone

SEEDS = range(16)
RARE = ("power", "drain", "keeper", "coordinator", "restart", "full", "disk", "drained",
        "unfit", "an older one from the disk")  # fmt: skip


def test_histories_are_clean() -> None:
    coverage = swept("python -m tests.sim.written --seed ", simulate_alone, SEEDS)

    assert not [path for path in RARE if not coverage[path]]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Mutant) -> None:
    with planted(bug):
        violation = simulate_alone(bug.seed).violation

    assert violation is not None
    assert violation.checker == bug.checker


@pytest.mark.parametrize("seed", sorted({bug.seed for bug in BUGS} - set(SEEDS)))
def test_the_history_that_catches_a_bug_is_clean_without_it(seed: int) -> None:
    assert simulate_alone(seed).violation is None
