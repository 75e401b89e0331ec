"""Launchers that are killed one after another, in any order: the last one goes on."""

from rendezvous.consensus import proved_deaths
from rendezvous.membership import flapping
from tests.sim.coordinators.job import simulate
from tests.sim.coordinators.plan import draw
from tests.sim.mutants import Mutant, planted
from tests.sim.sweep import swept

SEEDS = range(150)

FORGETFUL = Mutant(
    "forgetful: what another launcher has counted is not remembered", flapping,
    "FlappingNodes.learn", "if times:", "if False:", "losses", 0,
)  # fmt: skip

SHY = Mutant(
    "shy: that a leader has just answered makes nobody certain", proved_deaths,
    "ProvedDeaths.known", "return since_s <= timeouts.CONTACT_S", "return False", "cut off", 0,
)  # fmt: skip


def test_150_random_histories_end_well() -> None:
    coverage = swept(
        "python -m tests.sim.coordinators --seed ", lambda seed: simulate(draw(seed)), SEEDS
    )

    assert coverage["takeover"] > len(SEEDS)
    assert coverage["words of the dead"]


def test_most_end_well_also_where_launchers_often_stand_still_for_longer_than_a_second() -> None:
    """A launcher that nobody follows while others die does not know what they did meanwhile."""
    wrong = [seed for seed in SEEDS if simulate(draw(seed, stalled=True)).violation is not None]

    assert len(wrong) < 0.03 * len(SEEDS), wrong


def test_losses_that_are_not_handed_over_are_noticed() -> None:
    with planted(FORGETFUL):
        violation = simulate(draw(FORGETFUL.seed)).violation

    assert violation is not None and violation.checker == FORGETFUL.checker


def test_a_broken_rule_is_noticed() -> None:
    """`test_campaign` and `test_proved_deaths` have the others: here one mend hides another."""
    with planted(SHY):
        violations = (simulate(draw(seed)).violation for seed in range(100))
        found = next((violation for violation in violations if violation is not None), None)

    assert found is not None and found.checker == SHY.checker
    assert "what they had agreed on last is not known" in str(found)
