"""Two real launchers, of which the one that coordinates stands still: what the other one does."""

import os
import re
import select
import signal
from pathlib import Path

import pytest

from rendezvous.consensus import timeouts
from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.launching import PATIENCE_S, Launcher
from tests.e2e.nodes import Nodes

LOOK_S = 0.25
"""Of a fake worker that trains: it finishes a step in so much time."""


@pytest.mark.rest
def test_by_default_it_stops_and_names_the_ways_to_go_on(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 2)

    nodes.launches[0].send(signal.SIGSTOP)
    try:
        code = nodes.launches[1].finish()
    finally:
        nodes.launches[0].send(signal.SIGCONT)

    assert code == ExitCode.PARTITIONED
    said = nodes.launches[1].output.replace("\n", " ")
    for way in ("proved dead", "with a witness", "--on-partition=continue"):
        assert way in said
    nodes.stop([0])


@pytest.mark.rest
def test_who_stood_still_while_its_worker_did_the_last_of_its_part_has_not_failed(
    launcher: Launcher, tmp_path: Path
) -> None:
    last = tmp_path / "last"
    worker = f"1:hello topology say=serves await={last} farewell=0"
    nodes = Nodes(launcher, 2, "0:hello topology serve", worker)
    pid = int(nodes.launches[1].expect(r"rank 1: hello (\d+)")[1])

    nodes.launches[1].send(signal.SIGSTOP)
    try:
        last.touch()
        _await_end(pid)
        nodes.survivors_meet([0])
    finally:
        nodes.launches[1].send(signal.SIGCONT)

    assert nodes.launches[1].finish() == 0
    nodes.stop([0])


def _await_end(pid: int) -> None:
    """Wait until this process has ended; its parent may not know of it yet."""
    pidfd = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([pidfd], [], [], PATIENCE_S)
    finally:
        os.close(pidfd)
    assert ended, f"{pid} does not end"


@pytest.mark.rest
def test_neither_is_given_up_while_their_workers_train(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 2, "*:hello topology step")
    steps = int((timeouts.FENCE_S + 4.0) / LOOK_S)

    for rank in (0, 1):
        other = nodes.launches[1 - rank]
        nodes.launches[rank].send(signal.SIGSTOP)
        *_, newest = re.findall(r"commits (\d+)[.]", other.output) or ["0"]
        other.expect(f"commits {int(newest) + steps}[.]")
        nodes.launches[rank].send(signal.SIGCONT)

    # The one that coordinated still does: it begins the second generation.
    nodes.launches[1].send(signal.SIGKILL)
    generation, _ = nodes.survivors_meet([0])
    assert generation == 2
    nodes.stop([0])


def test_with_continue_it_goes_on_and_the_other_one_ends_when_it_wakes(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 2, extra=("--on-partition=continue",))

    generation, _ = nodes.stand_still(0)

    assert generation > 1000
    nodes.launches[1].expect("two jobs train from here on")
    nodes.stop([1])
