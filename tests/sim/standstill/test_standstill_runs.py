"""Runs with hangs and slow ranks: who hangs is lost in time, and nobody without a cause."""

import pytest

from rendezvous.protocol.progress_page import Phase
from tests.sim.mutants import planted
from tests.sim.standstill.activities import HANGS, Hang
from tests.sim.standstill.heavy import measure
from tests.sim.standstill.mutants import BUGS, Bug
from tests.sim.standstill.plan import HangAt, Plan
from tests.sim.standstill.world import World, simulate
from tests.sim.sweep import swept

SEEDS = (*range(30), 49, 91, 287, 969, 2614)
RARE = (
    "condemned: stopped", "condemned: still", "condemned: none", "all quiet", "parted",
    "stuck for good", "meets anew", "cleared", "slow operations torn", "hang in REDO",
    "hang in ALONE", "hang in FIRST_DATA", "healthy ranks lost: idle",
)  # fmt: skip


def test_runs_lose_whoever_hangs_in_time_and_nobody_without_a_cause() -> None:
    coverage = swept("python -m tests.sim.standstill --seed ", simulate, SEEDS)

    assert not [path for path in RARE if not coverage[path]]


@pytest.mark.parametrize("kind", HANGS)
@pytest.mark.parametrize("rank", [2, 3])
def test_who_hangs_as_its_replica_makes_up_for_a_loss_is_named_and_not_its_mate(
    rank: int, kind: Hang
) -> None:
    """The mate waits for it in torch's own communication, which pages do not tell of."""
    first = HangAt(1, 8, Phase.MICROBATCH, "lock")
    plan = Plan(
        seed=rank, replicas=4, shards=2, nodes=2, steps=20, step_s=0.5,
        hangs=(first, HangAt(rank, 8, Phase.REDO, kind)),
    )  # fmt: skip

    outcome = World(plan).run()

    assert outcome.violation is None and outcome.end == "well"
    assert outcome.coverage["hang in REDO"] == 1


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
