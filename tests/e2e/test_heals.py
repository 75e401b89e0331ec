"""A node that was left out for its silence comes back as a newcomer, where replicas come back."""

import signal

import pytest

from tests.e2e.launching import Launcher
from tests.e2e.nodes import Nodes

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(300)]


def test_a_launcher_that_stood_still_ends_its_workers_and_takes_its_place_again(
    launcher: Launcher,
) -> None:
    nodes = Nodes(launcher, 3, extra=("--return",))
    pids = nodes.launches[2].worker_pids()
    nodes.launches[2].send(signal.SIGSTOP)
    try:
        nodes.survivors_meet([0, 1])
    finally:
        nodes.launches[2].send(signal.SIGCONT)

    nodes.launches[2].expect("this node asks for a place in the job again")
    nodes.launches[0].expect_record("node.join", "in the place of")
    nodes.launches[2].expect(r"in the place of a node that was lost(.|\n)*rank 2: serves")
    assert nodes.launches[2].worker_pids() != pids
    nodes.stop([0, 1, 2])
