"""The values that programs get from `recoverrun.read_run`."""

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import recoverrun
from tests.unit import journals


def test_a_run_with_a_loss(tmp_path: Path) -> None:
    run = recoverrun.read_run(str(journals.one_loss(tmp_path)))

    assert (run.outcome, run.exit_code, run.proved) == ("completed", 0, True)
    assert run.verdict == "completed 40 steps, 1 loss survived"
    assert [step.step for step in run.steps] == list(range(40))
    assert run.steps[12].quota == {0: 6, 2: 6}
    assert (run.steps[12].redone, run.steps[12].taken_over, run.steps[13].taken_over) == (3, 1, 4)
    (loss,) = run.losses
    assert (loss.rank, loss.replica, loss.cause, loss.step) == (3, 1, "sigkill", 12)
    assert (loss.survived, loss.redone, loss.victims) == (True, 3, (2,))
    assert sum(loss.parts_ms.values()) == pytest.approx(loss.total_ms)
    assert run.returns == ()
    assert sum(run.goodput.buckets.values()) == run.goodput.wall_us


def test_a_run_that_failed_names_its_cause(tmp_path: Path) -> None:
    run = recoverrun.read_run(journals.user_exception(tmp_path))

    assert (run.outcome, run.exit_code) == ("failed", 1)
    assert "bad shard 8812" in run.root_cause


def test_no_journal_is_an_empty_run(tmp_path: Path) -> None:
    run = recoverrun.read_run(tmp_path)

    assert (run.outcome, run.steps, run.exit_code) == ("empty", (), None)


def test_what_was_read_cannot_be_changed(tmp_path: Path) -> None:
    run = recoverrun.read_run(journals.clean(tmp_path))

    with pytest.raises(FrozenInstanceError):
        run.title = "x"  # type: ignore[misc]


def test_importing_recoverrun_imports_nothing_of_it() -> None:
    code = """
import sys, recoverrun
print(sorted(n for n in sys.modules if n.partition(".")[0] in ("recoverrun", "rich", "jinja2")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "['recoverrun', 'recoverrun.version']", done.stderr
