"""Sixty scripts made by chance, and planted bugs that such scripts must find."""

from pathlib import Path

import pytest

from tests.hunt.__main__ import hunt, line
from tests.hunt.mutants import MUTANTS, Mutant
from tests.hunt.plain import Plain
from tests.hunt.trials import RETURNS_WITHIN_S, tried
from tests.sources import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(600)]

CHUNK = 6
SEEDS = [range(first, first + CHUNK) for first in range(CHUNK, 60, CHUNK)]


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(range(1), marks=pytest.mark.quick), range(1, CHUNK), *SEEDS],
    ids=lambda seeds: str(seeds[0]),
)
def test_no_script_is_silently_another_one(seeds: range, tmp_path: Path) -> None:
    """One of six is also run without a loss; the others show the same up to the loss."""
    cases = list(hunt(list(seeds), tmp_path, at_once=min(2, len(seeds)), whole_every=CHUNK))

    assert [line(case) for case in cases if case.findings] == []


def test_a_lost_rank_that_would_take_more_microbatches_is_told(tmp_path: Path) -> None:
    (case,) = hunt([71], tmp_path)

    assert case.findings == [] and case.lossy is not None, line(case)
    assert "another number of microbatches" in case.lossy.reason, line(case)


@pytest.mark.parametrize("seed", [10, 12])
def test_a_rank_that_comes_back_goes_on_as_it_would_have(seed: int, tmp_path: Path) -> None:
    (case,) = hunt([seed], tmp_path, returns=True, within_s=RETURNS_WITHIN_S)

    assert case.lossy is not None and case.lossy.kind == "whole", line(case)


@pytest.mark.quick
def test_planted_bugs_change_the_code_as_it_is_now() -> None:
    """Otherwise the run would end as it begins, which is no finding of the bug."""
    wrong = []
    for mutant in MUTANTS:
        for module, edits in mutant.edits.items():
            text = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
            wrong += [f"{mutant.name}: {old!r}" for old, _ in edits if text.count(old) != 1]

    assert wrong == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant, tmp_path: Path) -> None:
    with Plain() as plain:
        case = tried(
            mutant.plan,
            tmp_path / "case",
            plain,
            whole=not mutant.lossy,
            lossy=mutant.lossy,
            environment=mutant.environment,
        )

    [verdict] = case.verdicts
    assert verdict.kind == mutant.kind and verdict.reason != "never struck", line(case)
