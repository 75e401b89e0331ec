"""A loss before anything is protected costs the beginning: all ranks start again, uncounted."""

from pathlib import Path

import pytest

from tests.e2e import oracle
from tests.e2e.conftest import Reference
from tests.e2e.jobs import DDP3, HSDP, Job
from tests.e2e.judge import canary, ended_well, ledger, nothing_left, proof, weights
from tests.e2e.runs import recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

NOBODY: frozenset[int] = frozenset()


@pytest.mark.parametrize(
    ("job", "inject"),
    [
        (DDP3, "r1@step:0:forward"),
        pytest.param(DDP3, "r0@step:0:backward,r2@step:0:backward", marks=pytest.mark.matrix),
        pytest.param(HSDP, "r3@step:0:backward", marks=pytest.mark.matrix),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_loss_in_the_first_step_starts_all_ranks_again(
    job: Job, inject: str, tmp_path: Path, reference: Reference
) -> None:
    expected = reference(job)

    with running(job, tmp_path / "run", inject=inject) as run:
        ended_well(run)
        nothing_left(run)
        (again,) = run.records("job.restart")
        assert (again["attempt"], again["restarts"]) == (1, 0), again
        assert "before the first step was over" in again["reason"], again
        assert not run.records("replica.lost"), run.story()
        assert run.finishers() == list(range(job.ranks))
        ledger(run)
        canary(run, NOBODY)
        weights(run, NOBODY, expected, oracle.bound(job))
        proof(run)


def test_who_dies_in_every_first_step_ends_the_job(tmp_path: Path) -> None:
    with running(DDP3, tmp_path / "run", arguments=("--dies", "1:0")) as run:
        assert run.finish() == 128 + 9, run.story()
        nothing_left(run)
        assert [record["restarts"] for record in run.records("job.restart")] == [0, 0, 0]
        assert not run.finishers()

    told = recoverrun("postmortem", str(run.journal), "--json").stdout
    assert '"exit_code": 137' in told
