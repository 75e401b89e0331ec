"""`--check-params-every`: replicas that hold other parameters are noticed, and named."""

from pathlib import Path
from typing import Any

import pytest

from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.exactness import DDP3, HSDP2
from tests.e2e.judge import ended_well
from tests.e2e.runs import Run, recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


CORRUPT = ("--check-params-every=2",)


def _agreed_until(run: Run, corrupt: str) -> dict[str, Any]:
    """The one record of replicas that differ, which comes with the next digest."""
    (differ,) = run.records("digest.differ")
    step = int(corrupt.partition(":")[2])
    assert differ["step"] == step + 2 - step % 2
    agreed = [r["step"] for r in run.records("digest.agree") if r["step"] < differ["step"]]
    assert agreed == list(range(2, differ["step"], 2))
    return differ


@pytest.mark.quick
def test_a_bit_that_flips_on_one_rank_of_three_costs_its_replica_and_no_more(
    tmp_path: Path,
) -> None:
    arguments = ("--corrupt=1:2", "--steps=40")
    with running(DDP3, tmp_path / "run", options=CORRUPT, arguments=arguments) as run:
        ended_well(run)

        differ = _agreed_until(run, "1:2")
        assert (differ["ranks"], differ["outvoted"]) == ([1], True)
        (lost,) = run.records("replica.lost")
        assert lost["root_rank"] == 1
        assert "its parameters differ from the others'" in lost["reason"]
        later = [r["step"] for r in run.records("digest.agree") if r["step"] > differ["step"]]
        assert later[-1] > 30
        told = recoverrun("postmortem", str(run.journal)).stdout
    assert "its parameters differ from the others'" in told
    assert "INV-3 violated" not in told


def test_a_bit_that_flips_on_one_of_two_ends_the_run_for_nobody_can_say_whose(
    tmp_path: Path,
) -> None:
    arguments = ("--corrupt=3:3", "--steps=40")
    with running(HSDP2, tmp_path / "run", options=CORRUPT, arguments=arguments) as run:
        assert run.finish() == ExitCode.INVARIANT, run.story()

        differ = _agreed_until(run, "3:3")
        assert (differ["ranks"], differ["outvoted"]) == ([1, 3], False)
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
