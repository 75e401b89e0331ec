"""A node of the only replica is lost with its memory: its part is rebuilt, and another takes its
place. Weights are bit for bit those of a run without a loss.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.e2e.lost_nodes import LosingNodes, Nodes, come_back, struck, survived
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


def test_snapshots_go_on_where_another_node_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    """The lost rank's context went with its node: other samples are taken until it is back, and
    what ranks have in common is the same on both. The script counts its steps in its module.
    """
    case = LosingNodes(
        nodes=2, layout="ddp", lost=((13, (1,)), (150, (0, 1))), inject="pace:400", steps=180,
        options=("--return",),
    )  # fmt: skip
    nodes = come_back(case, tmp_path / "lost")

    back = [record["step"] for record in nodes.records("snapshot.restored")]
    weights = nodes.weights()
    assert len(back) == 1 and 13 < back[0] <= 150
    for name, tensor in weights[0].items():  # running means are of a rank's own last batch
        assert "running" in name or torch.equal(weights[1][name], tensor), name


def _ends(nodes: Nodes) -> bool:
    return bool(nodes.records("job.restart"))


def _keeps(nodes: Nodes) -> bool:
    safe = any(one["step"] == 10 for one in nodes.records("snapshot.safe"))
    return safe and bool(nodes.records("keeper.exit"))


@pytest.mark.parametrize(
    ("kills", "then", "times"),
    [
        ("node1@step:10:parity", _ends, 1),
        ("r1@step:10:parity", _ends, 1),
        ("keeper1@step:10:parity,r0@step:18:forward", _keeps, 1),
    ],
    ids=["node", "rank", "keeper"],
)
def test_who_is_lost_while_parity_is_made_leaves_no_trace(
    kills: str, then: Callable[[Nodes], bool], times: int, tmp_path: Path
) -> None:
    case = LosingNodes(nodes=2, inject=kills)
    expected = undisturbed(case.alike, tmp_path / "plain")

    weights, nodes = struck(case, tmp_path / "struck", then)

    planned = [record["step"] for record in nodes.records("snapshot.plan")]
    assert len(planned) == times and planned[0] >= 5, planned
    for rank, theirs in expected.items():
        for name, tensor in theirs.items():
            assert torch.equal(weights[rank][name], tensor), f"rank {rank}: {name}"
