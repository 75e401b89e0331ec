"""`--check-finite`: NaN of one machine costs a replica; NaN of the script is the script's."""

from pathlib import Path

import pytest

from tests.e2e.exactness import DDP3, HSDP2, ExactJob, differing, reference, states
from tests.e2e.judge import ended_well, ledger
from tests.e2e.runs import running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
matrix = pytest.mark.matrix
OPTIONS = ("--check-finite", "--exact")


@pytest.mark.parametrize(
    ("job", "rank"),
    [pytest.param(DDP3, 1, marks=matrix, id="ddp3"), pytest.param(HSDP2, 3, id="hsdp2x2")],
)
def test_row_40_a_replica_that_alone_is_not_finite_leaves_and_no_bit_is_changed(
    job: ExactJob, rank: int, tmp_path: Path
) -> None:
    expected = reference(job, *OPTIONS)
    with running(
        job, tmp_path / "run", options=OPTIONS, arguments=(f"--machine-overflows={rank}:3",)
    ) as run:
        ended_well(run)
        ledger(run)
        (lost,) = run.records("replica.lost")
        assert rank in lost["ranks"]
        assert "are not finite; replica" in lost["reason"], lost["reason"]
        (done,) = run.records("recovery.done")
        assert done["step"] == 3
        left = states(run)
        assert sorted(left) == [r for r in range(job.ranks) if r not in lost["ranks"]]
        for other, state in left.items():
            assert not differing(state, expected[other]), run.story()


@pytest.mark.parametrize("job", [DDP3, pytest.param(HSDP2, marks=matrix)], ids=lambda job: job.name)
def test_a_loss_that_overflows_for_everybody_is_the_scripts(job: ExactJob, tmp_path: Path) -> None:
    with running(
        job, tmp_path / "run", options=OPTIONS, arguments=("--loss-overflows=1:3",)
    ) as run:
        ended_well(run)
        assert not run.records("replica.lost")
        told = [record["reason"] for record in run.records("notice.give")]
        slot = 1 // max(1, job.shards)
        words = f"step 3: the gradients of replica {slot} are not finite, nor when replica"
        assert len(told) == 1 and told[0].startswith(words), told
        assert len(states(run)) == job.ranks
