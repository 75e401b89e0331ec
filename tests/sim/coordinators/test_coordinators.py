"""Launchers that end one after another, in any order: the last one goes on."""

import pytest

from recoverrun.launcher.leadership import leadership
from rendezvous.consensus import proved_deaths
from rendezvous.membership import flapping
from tests.sim.coordinators.job import simulate
from tests.sim.coordinators.plan import draw
from tests.sim.mutants import Mutant, planted
from tests.sim.sweep import swept

SEEDS = range(150)

LONELY = Mutant(
    "lonely: only the leader counts whom a configuration leaves out", leadership,
    "Leadership._enrolled", "count_losses(self.flapping_nodes, why, now)",
    "count_losses(self.flapping_nodes, why if configuration.leader == self.own else {}, now)",
    "losses", 0,
)  # fmt: skip

LEAVING = (
    Mutant(
        "deaf: what others tell of planned leaves is not remembered", flapping,
        "FlappingNodes.learn", "[*told_of][-NODES_MOST:]", "()", "losses", 1,
    ),
    Mutant(
        "curt: a coordinator does not tell who leaves", leadership, "Leadership.ballot",
        "event.reason, others)", "event.reason, ())", "losses", 716,
    ),
    Mutant(
        "stubborn: a loss that was counted stays one", flapping, "FlappingNodes.leave",
        "losses.times.pop(incarnation, None)", "pass", "losses", 129,
    ),
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


def test_150_random_histories_in_which_some_leave_as_planned_end_well() -> None:
    replay = "python -m tests.sim.coordinators --leaving --seed "
    coverage = swept(replay, lambda seed: simulate(draw(seed, leaving=True)), SEEDS)

    assert coverage["leave"]


def test_most_end_well_also_where_launchers_often_stand_still_for_longer_than_a_second() -> None:
    """A launcher that nobody follows while others die does not know what they did meanwhile."""
    wrong = [seed for seed in SEEDS if simulate(draw(seed, stalled=True)).violation is not None]

    assert len(wrong) < 0.03 * len(SEEDS), wrong


@pytest.mark.parametrize("mutant", [LONELY, *LEAVING], ids=lambda mutant: mutant.name)
def test_a_book_that_is_not_kept_by_all_is_noticed(mutant: Mutant) -> None:
    with planted(mutant):
        violation = simulate(draw(mutant.seed, leaving=mutant in LEAVING)).violation

    assert violation is not None and violation.checker == mutant.checker


def test_a_broken_rule_is_noticed() -> None:
    """`test_campaign` and `test_proved_deaths` have the others: here one mend hides another."""
    with planted(SHY):
        violations = (simulate(draw(seed)).violation for seed in range(100))
        found = next((violation for violation in violations if violation is not None), None)

    assert found is not None and found.checker == SHY.checker
    assert "what they had agreed on last is not known" in str(found)
