"""Facts of a run that its loops and checkpoints tell: its length, and what is done again."""

from pathlib import Path

import pytest

import recoverrun
from recoverrun.reports.goodput import rows
from rendezvous.journal.reader import read_run
from tests.e2e.runs import recoverrun as command
from tests.e2e.script_runs import SCRIPTS
from tests.unit.run_status import status_of

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

STEPS, CHECKPOINT, FAILED_AT = 40, 20, 27


def test_steps_since_the_checkpoint_are_done_again_and_told(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    ended = command(
        "--nproc-per-node=2", "--max-restarts=1", f"--run-dir={run_dir}",
        str(SCRIPTS / "resuming.py"), str(tmp_path),
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    run = recoverrun.read_run(run_dir)
    assert run.attempts == 2
    first, second = ([step.step for step in run.steps if step.attempt == n] for n in (0, 1))
    done_again = 1 + first[-1] - CHECKPOINT
    assert second == list(range(STEPS - CHECKPOINT))
    assert FAILED_AT - 1 <= first[-1] <= FAILED_AT
    assert run.goodput.again == done_again
    assert run.goodput.buckets["again"] > 0
    assert run.goodput.buckets["checkpoint"] > 0
    assert sum(run.goodput.buckets.values()) == run.goodput.wall_us
    assert {"again", "checkpoint"} <= {row.name for row in rows(run.goodput)}

    log = read_run(run_dir)
    assert status_of(log, run.latest).of == STEPS - CHECKPOINT
