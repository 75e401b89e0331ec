"""A node that was left out for its silence comes back as a newcomer, where replicas come back."""

import signal

import pytest

from tests.e2e.launching import Launcher
from tests.e2e.nodes import SERVE, Nodes

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(300)]


@pytest.mark.parametrize("late", [2, 0], ids=["another", "endpoint"])
def test_a_launcher_that_stood_still_ends_its_workers_and_takes_its_place_again(
    late: int, launcher: Launcher
) -> None:
    """The second one is that at the endpoint, which coordinates."""
    nodes = Nodes(launcher, 3, extra=("--return",))
    pids = nodes.launches[late].worker_pids()
    nodes.launches[late].send(signal.SIGSTOP)
    try:
        nodes.survivors_meet([rank for rank in range(3) if rank != late])
    finally:
        nodes.launches[late].send(signal.SIGCONT)

    nodes.launches[late].expect("this node asks the others for a place again")
    nodes.launches[late].expect(rf"in the place of a node that was lost(.|\n)*rank {late}: serves")
    nodes.launches[late].expect_record("worker.spawn", "", times=2)
    assert nodes.launches[late].worker_pids() != pids
    # Who comes anew finds the job at the endpoint, whoever listens there.
    nodes.launches[1].send(signal.SIGKILL)
    nodes.survivors_meet([2 - late])
    rank = "--node-rank=1"
    nodes.launches[1] = launcher.fake(SERVE, options=(*nodes.options, rank))
    nodes.launches[1].expect(r"in the place of a node that was lost(.|\n)*rank 1: serves")
    nodes.stop([0, 1, 2])
