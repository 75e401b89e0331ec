"""Launchers of two nodes that meet, share a fate, or miss each other. The workers are fakes."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from recoverrun.reports.history import history
from recoverrun.reports.proof import prove
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import ExitCode
from tests.chaos.net import net
from tests.e2e.launching import (
    Launcher,
    await_death,
    free_port,
    stranger,
    two_nodes,
)
from tests.e2e.nodes import SERVE, Nodes

pytestmark = pytest.mark.e2e

LOSSES = ("node.lost", "replica.lost", "leader.succeed")


def test_two_nodes_make_one_job(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    second = launcher.fake("*:get=key", nproc=2, options=node(1))
    first = launcher.fake("*:set=value", nproc=1, options=node(0))

    assert (first.finish(), second.finish()) == (0, 0)

    assert "rank 1: get ok value 0" in second.output
    assert "rank 2: get ok value 0" in second.output
    assert sorted(second.worker_pids()) == [1, 2]
    assert "a connection was closed" not in first.output + second.output  # it was one of ours


def test_nodes_without_a_rank_are_numbered_as_they_arrive(launcher: Launcher) -> None:
    options = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}")
    jobs = [launcher.fake("*:exit=0", options=options) for _ in range(2)]

    assert [job.finish() for job in jobs] == [0, 0]

    assert sorted(rank for job in jobs for rank in job.worker_pids()) == [0, 1]


def test_a_failure_on_one_node_ends_the_other_with_the_same_code(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    first = launcher.fake("*:hello hang", options=node(0))
    second = launcher.fake("*:hello raise=boom", options=node(1))

    assert (first.finish(), second.finish()) == (1, 1)

    for job in (first, second):
        report = job.output[job.output.index("FAILED") :].splitlines()
        assert "rank 1" in report[0] and "boom" in report[0]


def test_a_loss_on_the_other_node_is_known_here_at_once(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    plan = "hello topology meet=ready"
    first = launcher.fake(f"*:{plan} view=2 farewell=0", options=node(0))
    second = launcher.fake(f"1:{plan} view=2 farewell=0", f"2:{plan} sigkill", nproc=2,
                           options=node(1))  # fmt: skip

    assert (first.finish(), second.finish()) == (0, 0)

    assert "rank 0: view 2 lost [2]" in first.output
    assert "rank 1: view 2 lost [2]" in second.output


def test_a_lost_node_costs_its_replicas_and_leaves_its_contexts(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    first = launcher.fake("*:hello topology meet=ready view=2 farewell=0", options=node(0))
    second = launcher.fake(
        "*:hello topology meet=ready leave-context=words commit=0 commit=0 hang", options=node(1)
    )
    second.expect("rank 1: hangs")
    pids = second.worker_pids()

    second.send(signal.SIGKILL)

    assert first.finish() == 0
    assert "rank 0: view 2 lost [1]" in first.output
    assert [r["ranks"] for r in first.records("node.lost")] == [[1]]
    assert await_death(pids[1], 1) < 1
    second.finish()


@pytest.mark.rest
def test_a_silent_coordinator_ends_the_other_nodes(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    first = launcher.fake("*:hello hang", options=node(0))
    second = launcher.fake("*:hello hang", options=node(1))
    second.expect("rank 1: hangs")

    first.send(signal.SIGSTOP)
    try:
        code = second.finish()
    finally:
        first.send(signal.SIGCONT)

    assert code == ExitCode.PARTITIONED
    assert "cut off from the job: no leader has answered for 16." in second.output
    # What wakes up again learns that it is alone, with a job that was not protected.
    assert first.finish() == 137
    assert "node vm.1 is lost: its launcher" in first.output


def test_a_user_who_stops_one_node_stops_them_all(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    first = launcher.fake("*:hello hang", options=node(0))
    second = launcher.fake("*:hello hang", options=node(1))
    first.expect("rank 0: hangs")
    second.expect("rank 1: hangs")

    second.send(signal.SIGTERM)

    assert [first.finish(), second.finish()] == [ExitCode.TERMINATED] * 2


def test_launchers_that_end_with_the_job_are_no_losses(launcher: Launcher) -> None:
    """The coordinator's worker takes longest to end: it sees all other launchers go."""
    slow = SERVE.replace("*:hello", "0:hello ignore_term")
    nodes = Nodes(launcher, 3, slow, SERVE, extra=("--shutdown-timeout=3",))

    nodes.launches[1].send(signal.SIGINT)

    assert [one.finish() for one in nodes.launches] == [ExitCode.INTERRUPTED] * 3
    first = nodes.launches[0]
    assert "SIGINT was sent to the launcher on vm.1" in first.output
    assert not [one for event in LOSSES for one in first.records(event)]


# ------------------------------------------------------------------------------- no meeting


def test_a_launcher_too_many_waits_and_hurts_nobody(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    first = launcher.fake("*:get=key", options=node(0))
    second = launcher.fake("*:hello hang", options=node(1))
    second.expect("rank 1: hangs")

    third = launcher.fake("*:exit=0", options=node(1))

    third.expect("has all of its 2 nodes: this one waits as a spare")
    first.send(signal.SIGTERM)
    codes = [one.finish() for one in (first, second, third)]
    assert codes == [ExitCode.TERMINATED] * 3
    assert third.worker_pids() == {}


def test_the_same_node_rank_twice_is_refused(launcher: Launcher) -> None:
    port = free_port()
    first = launcher.fake("*:exit=0", options=two_nodes(port)(0))
    first.expect("2 nodes meet at")
    common = ("--nnodes=2", "--node-rank=0", "--rdzv-backend=c10d")

    second = launcher.fake("*:exit=0", options=(*common, f"--rdzv-endpoint=127.0.0.1:{port}"))

    assert second.finish() == 2
    assert "node rank 0 is already taken" in second.output
    assert launcher.fake("*:exit=0", options=two_nodes(port)(1)).finish() == 0
    assert first.finish() == 0


@pytest.mark.parametrize("lacks", [0, 1])
def test_nobody_waits_for_a_node_that_has_no_script(
    launcher: Launcher, tmp_path: Path, lacks: int
) -> None:
    node, script = two_nodes(free_port()), tmp_path / "train.py"
    script.write_text("")
    lacking = launcher(*node(lacks), "elsewhere/train.py")
    waiting = launcher(*node(1 - lacks), str(script))

    assert (lacking.finish(), waiting.finish()) == (2, 2)
    assert lacking.output.count("there is no script 'elsewhere/train.py'") == 1
    waiting.expect(
        r"recoverrun: \S+ .*cannot take part: there is no script 'elsewhere/train.py' in"
    )
    assert not waiting.records("worker.spawn")


def test_all_who_wait_are_told_of_a_node_that_has_no_script(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    node, three = two_nodes(free_port()), "--nnodes=3"
    waiting = [launcher(*node(rank), three, f"{tmp_path}/train.py") for rank in (0, 1)]
    for one in waiting:
        one.expect("wait(s|ing) for ")
    lacking = launcher(*node(2), three, "elsewhere/train.py")

    assert [one.finish() for one in (lacking, *waiting)] == [2, 2, 2]
    for one in waiting:
        one.expect("cannot take part: there is no script 'elsewhere/train.py' in")


def test_nobody_waits_for_a_node_on_which_the_name_of_the_script_is_mistyped(
    launcher: Launcher, tmp_path: Path
) -> None:
    node, script = two_nodes(free_port()), tmp_path / "train.py"
    script.touch()
    waiting = launcher(*node(0), str(script))
    lacking = launcher(*node(1), f"{tmp_path}/trian.py")

    assert (lacking.finish(), waiting.finish()) == (2, 2)
    waiting.expect("cannot take part: there is no script '.*trian.py'")


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_node_without_the_script_waits_for_others_as_long_as_they_would_wait_for_it(
    launcher: Launcher, tmp_path: Path, lacks: int
) -> None:
    node, script = two_nodes(free_port()), tmp_path / "train.py"
    script.touch()
    lacking = launcher(*node(lacks), "elsewhere/train.py")
    lacking.expect("waits for the others to tell them, 600 s at most: there is no script")

    waiting = launcher(*node(1 - lacks), str(script))

    assert (lacking.finish(), waiting.finish()) == (2, 2)
    waiting.expect("cannot take part: there is no script 'elsewhere/train.py' in")


def test_a_node_without_the_script_leaves_on_a_signal(launcher: Launcher) -> None:
    lacking = launcher(*two_nodes(free_port())(0), "elsewhere/train.py")
    lacking.expect("waits for the others to tell them, 600 s at most")

    lacking.send(signal.SIGINT)

    assert lacking.finish() == ExitCode.INTERRUPTED


def test_nobody_waits_for_a_node_that_has_no_run_directory(
    launcher: Launcher, tmp_path: Path
) -> None:
    node = two_nodes(free_port())
    (tmp_path / "file").touch()
    waiting = launcher.fake("*:exit=0", options=node(0))
    lacking = launcher.fake("*:exit=0", options=(*node(1), f"--run-dir={tmp_path}/file/run"))

    assert (lacking.finish(), waiting.finish()) == (2, 2)
    waiting.expect("cannot take part: no run directory .*file/run: .* is no directory")


def test_an_endpoint_that_is_taken_is_named(launcher: Launcher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        job = launcher.fake("*:exit=0", options=two_nodes(port)(0))

        assert job.finish() == ExitCode.NEVER_FORMED
    assert f"cannot listen at 127.0.0.1:{port}: address already in use" in job.output


def test_an_endpoint_that_speaks_another_language_is_told_from_silence(launcher: Launcher) -> None:
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10) as port:
        job = launcher.fake("*:exit=0", options=two_nodes(port)(1))

        assert job.finish() == ExitCode.NEVER_FORMED
    assert "is not a recoverrun rendezvous" in job.output


def test_an_endpoint_where_nobody_is_ends_with_the_join_timeout(launcher: Launcher) -> None:
    options = (*two_nodes(free_port())(1), "--rdzv-conf=join_timeout=0.5")

    job = launcher.fake("*:exit=0", options=options)

    assert job.finish() == ExitCode.NEVER_FORMED
    assert "nobody answered at 127.0.0.1" in job.output


@pytest.mark.rest
def test_both_ends_of_a_wait_are_told(launcher: Launcher) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    options = ("--nnodes=3", "--rdzv-conf=join_timeout=5", f"--rdzv-endpoint={endpoint}")
    nodes = [launcher.fake("*:exit=0", options=(*options, f"--node-rank={n}")) for n in (0, 1)]

    assert [node.finish() for node in nodes] == [ExitCode.NEVER_FORMED] * 2

    assert re.search(r"waiting for 1 of 3 nodes \(node rank 2\), \d s left", nodes[0].output)
    assert f"joined at {endpoint}, which waits for the other nodes" in nodes[1].output
    assert len(nodes[0].records("job.wait")) == 1


def test_a_job_that_stays_incomplete_says_who_is_there(launcher: Launcher) -> None:
    options = (*two_nodes(free_port())(0), "--rdzv-conf=join_timeout=0.5")

    job = launcher.fake("*:exit=0", options=options)

    assert job.finish() == ExitCode.NEVER_FORMED
    assert "1 of 2 nodes joined within 0.5 s" in job.output


def test_ctrl_c_while_the_job_forms_ends_it(launcher: Launcher) -> None:
    node = two_nodes(free_port())
    job = launcher.fake("*:exit=0", options=(*node(0), "--rdzv-conf=join_timeout=600"))
    job.expect("2 nodes meet at")

    job.send(signal.SIGINT)

    assert job.finish() == ExitCode.INTERRUPTED


def test_each_node_has_an_account_of_the_steps_and_together_they_are_one_run(
    launcher: Launcher,
) -> None:
    node = two_nodes(free_port())
    plan = "*:hello topology meet=ready commit=0 commit=1 commit=2 farewell=3"
    jobs = [launcher.fake(plan, options=node(rank)) for rank in range(2)]

    assert [job.finish() for job in jobs] == [0, 0]

    assert [len(job.records("step.commit")) for job in jobs] == [3, 0]
    parts = jobs[1].records("step.part")
    assert [(part["step"], part["quota"], part["total"]) for part in parts] == [
        (step, {"1": 1}, 2) for step in range(3)
    ]
    for places in ([jobs[1].run_dir], [job.run_dir for job in jobs]):
        log = read_run(*places)
        assert (prove(history(log), log).verdict, len(history(log).commits)) == ("proved", 3)


# ------------------------------------------------------------------------------- the way


@pytest.mark.rest
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces")
def test_workers_of_two_hosts_are_told_the_way_where_names_lead_nowhere(launcher: Launcher) -> None:
    program = ("--no-python", "sh", "-c", "echo way=$GLOO_SOCKET_IFNAME")
    with net(2, f"way{os.getpid()}") as hosts:
        options = ("--nnodes=2", f"--rdzv-endpoint={hosts.host(0)}:29500")
        jobs = [
            launcher(*options, f"--node-rank={rank}", *program, within=hosts.within(rank))
            for rank in (0, 1)
        ]
        assert [job.finish() for job in jobs] == [0, 0]

    # A namespace has the name of the machine: it leads to the loopback interface, or to an address
    # that is not in there.
    for job in jobs:
        assert "GLOO_SOCKET_IFNAME=eth0 is set: this host's name leads to 127.0." in job.output
        assert "way=eth0" in job.output
