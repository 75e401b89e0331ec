"""Ranks of the only replica die: all go back, and weights are bit for bit those without a loss."""

from pathlib import Path

import pytest
import torch

from tests.e2e.snapshots import GoingBack, gone_back, undisturbed

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(900)]

CASES = (
    GoingBack(shape="counting"),
    GoingBack(shape="trainer", dies="0@18"),
    GoingBack(shape="epochs", dies="0@18,0@22"),
    GoingBack(shape="workers", dies="0@22"),
    GoingBack(shape="counting", dies="", inject="r0@step:15:snapshot"),
    GoingBack(shape="counting", every="auto"),
    GoingBack(shape="ahead", dies="0@13,0@22"),
    GoingBack(shape="renewed", dies="0@8,0@18,0@22"),
    *(
        GoingBack(shape=framework, dies="0@6,0@18", needs=framework)
        for framework in ("accelerate", "transformers", "lightning")
    ),
    GoingBack(shape="micro", layout="ddp"),
    GoingBack(shape="epochs", layout="fsdp2", ranks=2, dies="1@13"),
    GoingBack(shape="counting", layout="fsdp2", ranks=2, dies="all@13"),
    GoingBack(shape="micro", layout="fsdp2", ranks=2, dies="0@8,1@13,all@22"),
    GoingBack(shape="counting", layout="fsdp1", ranks=2, dies="1@13"),
    GoingBack(shape="epochs", layout="fsdp1-original", ranks=2, dies="0@22"),
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.quick if case is CASES[0] else ())
        for case in CASES
    ],
)
def test_weights_are_those_of_a_run_without_a_loss(case: GoingBack, tmp_path: Path) -> None:
    if case.needs:
        pytest.importorskip(case.needs, reason="`make compat` installs it")
    expected = undisturbed(case, tmp_path / "plain")

    weights, steps = gone_back(case, tmp_path / "back")

    assert len(steps) == case.losses
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"
