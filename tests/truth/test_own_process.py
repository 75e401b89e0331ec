"""A script that looks at its own process finds there what it finds under torchrun."""

from pathlib import Path

import pytest

from tests.truth.case import Case
from tests.truth.runs import apart, ours, story, under_torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


def test_neither_our_threads_nor_our_forks_are_seen(tmp_path: Path) -> None:
    case = Case(name="own-process", script="own_process.py")
    expected = under_torchrun(case, tmp_path / "torchrun")
    assert expected.code == 0, expected.output

    left, trial = ours(case, tmp_path / "ours")

    assert left.code == 0, story(left, trial)
    assert left.figures == expected.figures
    assert not any(apart(left.weights[rank], expected.weights[rank]) for rank in (0, 1))
    assert trial.history.promise == "exact-samples", story(left, trial)
