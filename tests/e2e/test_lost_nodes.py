"""A node of the only replica is lost with its memory: its part is rebuilt, and another takes its
place. Weights are bit for bit those of a run without a loss.
"""

from pathlib import Path

import pytest
import torch

from tests.e2e.lost_nodes import LosingNodes, survived
from tests.e2e.snapshots import undisturbed

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(900)]

CASES = (
    LosingNodes(nodes=2),
    LosingNodes(nodes=2, spares=False),
    LosingNodes(nodes=3, layout="fsdp1", lost=((13, (2,)),)),
    LosingNodes(nodes=3, shape="counting", lost=((8, (1,)), (18, (2,)))),
    LosingNodes(nodes=4, parity=2, lost=((13, (2,)),)),
)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_weights_are_those_of_a_run_without_a_loss(case: LosingNodes, tmp_path: Path) -> None:
    expected = undisturbed(case.alike, tmp_path / "plain")

    weights, back = survived(case, tmp_path / "lost")

    assert len(back) == len(case.lost)
    for record, (step, lost) in zip(back, case.lost, strict=True):
        assert record["step"] >= step // 5 * 5
        assert record["rebuilt"] == list(lost)
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"
