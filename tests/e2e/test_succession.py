"""Real launchers that lose the one that coordinates: the others agree on another, and go on."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from recoverrun.launcher.network.side_door import side_doors
from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.launching import ROOT, Launcher, first_with, free_port, repeated
from tests.e2e.nodes import SERVE, Nodes
from tests.e2e.runs import recoverrun

AT_ONCE_S = 2.0
"""If its host refuses connections it is replaced in tenths of a second; a machine may be busy."""

SILENT_S = 16.0
"""A silent one holds a lease for 2.5 s, and others stand 4 to 5.6 s later."""


@pytest.mark.parametrize("many", [2, 3, 5])
def test_the_others_go_on_without_the_launcher_that_coordinates(
    launcher: Launcher, many: int
) -> None:
    nodes = Nodes(launcher, many)
    survivors = list(range(1, many))

    killed_at = time.monotonic()
    nodes.launches[0].send(signal.SIGKILL)
    generation, met_at = nodes.survivors_meet(survivors)

    assert generation > 1000
    assert met_at - killed_at < AT_ONCE_S
    nodes.stop(survivors)


def test_a_launcher_that_is_started_again_at_the_endpoint_finds_the_job(
    launcher: Launcher,
) -> None:
    nodes = Nodes(launcher, 3)
    nodes.launches[0].send(signal.SIGKILL)
    nodes.survivors_meet([1, 2])

    again = launcher.fake(SERVE, options=(*nodes.options, "--node-rank=0"))
    again.expect("this job runs already; asking 127.0.0.1:")
    again.expect("this one waits as a spare")
    late = launcher.fake(SERVE, options=(*nodes.options, "--node-rank=2"))
    late.expect("this one waits as a spare")

    nodes.stop([1, 2])
    assert [again.finish(), late.finish()] == [ExitCode.INTERRUPTED] * 2


def test_one_coordinator_after_another_down_to_the_last(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 4)

    for rank in range(3):
        nodes.launches[rank].send(signal.SIGKILL)
        nodes.survivors_meet(list(range(rank + 1, 4)))

    nodes.stop([3])


def test_two_of_five_at_once_with_the_coordinator_among_them(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 5)

    nodes.launches[0].send(signal.SIGKILL)
    nodes.launches[3].send(signal.SIGKILL)
    nodes.survivors_meet([1, 2, 4])

    nodes.stop([1, 2, 4])


def test_a_coordinator_that_stands_still_is_replaced_and_ends_when_it_wakes(
    launcher: Launcher,
) -> None:
    nodes = Nodes(launcher, 3)

    stopped_at = time.monotonic()
    _, met_at = nodes.stand_still(0)

    assert met_at - stopped_at < SILENT_S
    nodes.stop([1, 2])


def test_a_coordinator_that_pauses_briefly_is_kept(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 3)
    nodes.launches[0].send(signal.SIGSTOP)
    time.sleep(1.0)  # the length of the pause is what is tested
    nodes.launches[0].send(signal.SIGCONT)

    nodes.launches[1].send(signal.SIGKILL)
    generation, _ = nodes.survivors_meet([0, 2])
    assert generation == 2
    nodes.stop([0, 2])


def test_sigterm_to_the_coordinating_node_takes_that_node_out(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 3)

    nodes.launches[0].send(signal.SIGTERM)

    assert nodes.launches[0].finish() == ExitCode.TERMINATED
    nodes.survivors_meet([1, 2])
    nodes.launches[1].send(signal.SIGKILL)
    nodes.survivors_meet([2])
    nodes.stop([2])


def test_what_the_store_answered_outlives_the_launcher_that_answered(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 3, "0:hello topology set=kept serve", "*:hello topology serve=key")
    nodes.launches[0].send(signal.SIGKILL)
    nodes.survivors_meet([1, 2])

    for rank in (1, 2):
        nodes.launches[rank].expect(f"rank {rank}: get ok kept")
    nodes.stop([1, 2])


def test_the_journals_of_two_coordinators_name_the_launcher_that_was_killed(
    launcher: Launcher,
) -> None:
    nodes = Nodes(launcher, 3)
    nodes.launches[0].send(signal.SIGKILL)
    nodes.survivors_meet([1, 2])
    nodes.stop([1, 2])

    first, *others = nodes.launches
    assert [line["round"] for line in first.records("leader.elect")] == [1]
    (second,) = [node for node in others if node.records("leader.succeed")]
    assert [line["tenure"] for line in second.records("leader.succeed")] == [2]
    (lost,) = second.records("node.lost")
    assert (lost["ranks"], lost["reason"]) == ([0], "vm.0: its launcher has ended")


@pytest.mark.rest
def test_a_spare_finds_whoever_coordinates_and_goes_on_waiting(launcher: Launcher) -> None:
    nodes = Nodes(launcher, 3, extra=("--rdzv-backend=c10d",))
    spare = launcher.fake(SERVE, options=nodes.options)
    spare.expect("waits as a spare")

    ranks, found = [0, 1, 2], "another launcher coordinates"
    for event, words in (("leader.elect", found), ("leader.succeed", f"(?s){found}.*{found}")):
        leader = nodes.first_with(event, ranks)
        nodes.launches[leader].send(signal.SIGKILL)
        ranks.remove(leader)
        nodes.survivors_meet(ranks)
        spare.expect(words)

    nodes.stop(ranks)
    assert spare.finish() == ExitCode.INTERRUPTED


def test_whoever_knocks_at_a_launcher_that_does_not_coordinate_is_told_who_does(
    launcher: Launcher,
) -> None:
    nodes = Nodes(launcher, 3)
    of_readers = {port for _, port in side_doors(nodes.endpoint)}
    process = psutil.Process(nodes.launches[1].pid)
    listens = {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}
    (port,) = listens - of_readers
    endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"

    spare = launcher.fake(SERVE, options=("--nnodes=3", "--node-rank=1", endpoint))

    spare.expect("waits as a spare")
    nodes.stop([0, 1, 2])
    assert spare.finish() == ExitCode.INTERRUPTED


@pytest.mark.rest
def test_training_outlives_three_coordinating_nodes_in_turn(
    launcher: Launcher, tmp_path: Path
) -> None:
    run_dir = tmp_path / "shared"
    endpoint = f"127.0.0.1:{free_port()}"
    script = (str(ROOT / "templates/gpt_hsdp.py"), "--shard-size=1", "--steps=60")
    nodes = {
        rank: launcher(
            "--nnodes=4", f"--node-rank={rank}", f"--rdzv-endpoint={endpoint}",
            f"--run-dir={run_dir}", *script,
            env={"OMP_NUM_THREADS": "1"},
        )
        for rank in range(4)
    }  # fmt: skip
    nodes[0].expect("protected: lost microbatches")
    leader, killed = 0, []
    for _ in range(3):
        nodes.pop(leader).send(signal.SIGKILL)
        killed.append(leader)
        leader = first_with(nodes, "coordinates this run now")
        # Who takes over may still be telling the others what it knows as its first step commits; a
        # coordinator that is killed in that instant leaves a last node that cannot go on alone.
        nodes[leader].expect(r"✓ step \d+ complete")
        repeated(nodes, r"step \d+ loss", 2)

    assert nodes[leader].finish() == 0
    told = recoverrun("postmortem", str(run_dir), "--json")
    found = json.loads(told.stdout)
    assert (found["invariant"]["verdict"], found["invariant"]["exact"]) == ("proved", 60)
    assert [loss["root_cause"]["rank"] for loss in found["losses"]] == killed
    assert found["causes"] == {"node-lost": 3}
