"""Losses after the last step: what nobody has done in the place of the lost is told."""

from pathlib import Path

import pytest

from tests.e2e.script_runs import SCRIPTS, run

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

SCRIPT = SCRIPTS / "ending.py"


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("disk", 1, "OSError: [Errno 28] No space left on device"),
        ("before-disk", 1, "in the place of rank 0, at ending.py:50: OSError(28, "),
        ("saving", 137, "what rank 0 does alone at ending.py:49 may be missing"),
    ],
)
def test_a_model_that_rank_0_could_not_save_fails_the_job(
    how: str, code: int, words: str, tmp_path: Path
) -> None:
    outcome = run(SCRIPT, tmp_path, how, options=["--no-return"])

    assert outcome.code == code, outcome.text
    assert words in outcome.text
    assert "after the last step" in outcome.text
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("how", ["before", "other"])
def test_a_job_whose_model_was_saved_has_ended_well(how: str, tmp_path: Path) -> None:
    outcome = run(SCRIPT, tmp_path, how, options=["--no-return"])

    assert outcome.code == 0, outcome.text
    assert (tmp_path / "model.pt").exists()
