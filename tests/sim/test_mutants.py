"""Planted bugs: the simulator notices each of them, and it is known which checker does."""

from contextlib import ExitStack

import pytest

from tests.sim.history import simulate
from tests.sim.mutants import BLIND, MUTANTS, Mutant, planted

CI_SEEDS = 200
"""Tried after the seed that a mutant names, which may have become another history since."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    found: dict[str, int] = {}
    with planted(mutant):
        for seed in (mutant.seed, *range(CI_SEEDS)):
            violation = simulate(seed).violation
            if violation is not None:
                found.setdefault(violation.checker, seed)
            if mutant.checker in found:
                break

    assert mutant.checker in found, f"{mutant.name}: {mutant.checker} is silent, {found}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_history_that_catches_a_bug_is_clean_without_it(mutant: Mutant) -> None:
    assert simulate(mutant.seed).violation is None


@pytest.mark.parametrize(
    ("name", "checker"),
    [
        ("an identity is dealt out twice", "INV-1"),
        ("a surprised rank reduces", "INV-1"),
        ("commit when only some hold the sums", "INV-1"),
        ("a report is final too early", "INV-1"),
    ],
)
def test_the_checkers_need_no_assertion_of_the_machines(name: str, checker: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    found = set()
    with ExitStack() as stack:
        for bug in (mutant, *BLIND):
            stack.enter_context(planted(bug))
        for seed in range(60):
            violation = simulate(seed).violation
            found |= {violation.checker} if violation is not None else set()

    assert checker in found
