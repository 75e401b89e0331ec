"""`--check-params-every`: replicas that hold other parameters are noticed, and named."""

from pathlib import Path

import pytest

from tests.e2e.exactness import DDP3, HSDP2, ExactJob
from tests.e2e.judge import ended_well
from tests.e2e.runs import recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


@pytest.mark.parametrize(
    ("job", "corrupt", "astray"),
    [pytest.param(DDP3, "1:2", [1], marks=pytest.mark.quick), (HSDP2, "3:3", [1, 3])],
    ids=["of three, one is named", "of two, nobody can say who"],
)
def test_a_bit_that_flips_on_one_rank_ends_the_run_at_the_next_digest(
    job: ExactJob, corrupt: str, astray: list[int], tmp_path: Path
) -> None:
    options, arguments = ("--check-params-every=2",), (f"--corrupt={corrupt}", "--steps=40")
    with running(job, tmp_path / "run", options=options, arguments=arguments) as run:
        assert run.finish() == 85, run.story()

        (differ,) = run.records("digest.differ")
        step = int(corrupt.partition(":")[2])
        assert differ["step"] == step + 2 - step % 2
        assert differ["ranks"] == astray
        agreed = [record["step"] for record in run.records("digest.agree")]
        assert agreed == list(range(2, differ["step"], 2))
        assert run.records("invariant.break")[0]["invariant"] == "INV-3"
        told = recoverrun("postmortem", str(run.journal)).stdout
    assert "INV-3 violated" in told
    assert f"at step {differ['step']}" in told and "the parameters of ranks" in told


def test_replicas_agree_before_and_after_a_loss(tmp_path: Path) -> None:
    with running(
        DDP3, tmp_path / "run", inject="r0@step:2:reduce", options=("--check-params-every=1",)
    ) as run:
        ended_well(run)

        agreed = [record["step"] for record in run.records("digest.agree")]
        assert agreed == list(range(1, DDP3.steps))  # the first one is torch's own
        assert not run.records("digest.differ")
