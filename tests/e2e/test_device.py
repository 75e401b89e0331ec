"""The way of gradients over an accelerator, with real processes and real losses, on the CPU."""

import json
from pathlib import Path

import pytest

from tests.e2e import oracle
from tests.e2e.conftest import Reference
from tests.e2e.jobs import DDP3, Job
from tests.e2e.judge import judge
from tests.e2e.runs import Run, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

DEVICE3 = Job(name="device3x1", script="canary_device.py", ranks=3)


def told(run: Run, rank: int) -> dict[str, int]:
    """The number of calls of the stand-in for NCCL."""
    counts: dict[str, int] = json.loads((run.out / f"device{rank}.json").read_text())
    return counts


@pytest.mark.parametrize(
    ("inject", "dead", "generations"),
    [
        ("r1@step:3:reduce", (1,), 2),
        ("r2@step:2:reduce:0,r0@step:5:backward", (0, 2), 2),  # the last one needs no communicator
    ],
)
def test_losses_over_a_communicator_that_is_aborted(
    inject: str, dead: tuple[int, ...], generations: int, tmp_path: Path, reference: Reference
) -> None:
    expected, bound = reference(DDP3), oracle.bound(DDP3)

    with running(DEVICE3, tmp_path / "run", inject=inject) as run:
        judge(run, frozenset(dead), expected, bound)

        for rank in set(range(3)) - set(dead):
            counts = told(run, rank)
            assert (counts["groups"], counts["aborts"]) == (generations, len(dead))
            assert counts["launches"] > DEVICE3.steps
