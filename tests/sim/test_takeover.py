"""The launcher that coordinates is lost, and another goes on from what the launchers remember."""

from collections import Counter

import pytest

from tests.sim.history import History
from tests.sim.mutants import TAKEOVER, Mutant, planted
from tests.sim.plan import draw_takeover

SEEDS = range(200)


def test_200_histories_with_lost_coordinators_break_nothing() -> None:
    coverage: Counter[str] = Counter()
    ends: Counter[int] = Counter()
    wrong = []
    for seed in SEEDS:
        outcome = History(draw_takeover(seed)).run()
        coverage += outcome.coverage
        ends[outcome.stop.exit_code if outcome.stop is not None else -1] += 1
        if outcome.violation is not None:
            wrong.append(f"seed {seed}: {outcome.violation}")

    assert not wrong, "\n".join(wrong)
    assert coverage["fault leader"] + coverage["fault depose"] > 0.5 * len(SEEDS)
    assert coverage["fault depose"] and coverage["stop before the start"]
    assert ends[0] > 0.6 * len(SEEDS)
    assert coverage["decision: redo"] and coverage["decision: commit"] and coverage["catch-up"]


@pytest.mark.parametrize("mutant", TAKEOVER, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    found: dict[str, int] = {}
    with planted(mutant):
        for seed in (mutant.seed, *SEEDS):
            violation = History(draw_takeover(seed)).run().violation
            if violation is not None:
                found.setdefault(violation.checker, seed)
            if mutant.checker in found:
                return

    raise AssertionError(f"{mutant.name}: {mutant.checker} is silent, {found}")
