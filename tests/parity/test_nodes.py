"""Several launchers: places, ranges of nodes, one restart count, one cause, real command lines."""

import os
import signal
import socket

import pytest

from rendezvous.protocol.exit_codes import ExitCode
from tests.parity.driver import PROBE, SCRIPTS, Driver, Job

pytestmark = pytest.mark.e2e

HANG = "0:*:wait=60 1:*:wait=60"


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _static(port: int, node: int) -> list[str]:
    return ["--nnodes=2", f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}"]


def _c10d(port: int) -> list[str]:
    return ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=job"]


def _places(jobs: list[Job]) -> list[tuple[str, ...]]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
             "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME")  # fmt: skip
    probes = [probe for job in jobs for probe in job.probes]
    return sorted(tuple(probe["env"][name] for name in names) for probe in probes)


def _finish(jobs: list[Job]) -> list[int]:
    return [job.finish() for job in jobs]


def test_two_static_nodes_of_different_sizes(driver: Driver) -> None:
    found = []
    for ours in (False, True):
        port = _port()
        jobs = [
            driver.start(ours, *_static(port, node), f"--nproc-per-node={node + 1}", PROBE)
            for node in range(2)
        ]
        assert _finish(jobs) == [0, 0]
        assert [p["env"]["GROUP_RANK"] for job in jobs for p in job.probes] == ["0", "1", "1"]
        found.append(_places(jobs))

    assert found[0] == found[1]


def test_two_c10d_nodes(driver: Driver) -> None:
    found = []
    for ours in (False, True):
        port = _port()
        jobs = [driver.start(ours, "--nnodes=2", *_c10d(port), PROBE) for _ in range(2)]
        assert _finish(jobs) == [0, 0]
        found.append(_places(jobs))

    assert found[0] == found[1]


def test_node_ranks_are_honoured_with_c10d(driver: Driver) -> None:
    line = ["--nnodes=2", *_c10d(_port())]
    jobs = [driver.start(True, *line, f"--node-rank={node}", PROBE) for node in (1, 0)]

    assert _finish(jobs) == [0, 0]
    assert [job.probes[0]["env"]["GROUP_RANK"] for job in jobs] == ["1", "0"]


@pytest.mark.rest
def test_launchers_outlast_a_socket_that_only_happens_to_have_the_port(driver: Driver) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))  # As an outgoing connection does; it never listens.
        line = ["--nnodes=2", *_c10d(stranger.getsockname()[1])]
        jobs = [driver.start(True, *line, PROBE) for _ in range(2)]
        for job in jobs:
            job.expect_error("2 nodes meet at")

    assert _finish(jobs) == [0, 0]


@pytest.mark.rest
def test_roles_count_their_own_ranks(driver: Driver) -> None:
    port = _port()
    jobs = [
        driver.start(True, *_static(port, node), f"--role={role}", PROBE)
        for node, role in enumerate(("master", "worker"))
    ]

    assert _finish(jobs) == [0, 0]
    assert [job.probes[0]["env"]["ROLE_RANK"] for job in jobs] == ["0", "0"]


def test_a_range_of_nodes_forms_with_all_that_come(driver: Driver) -> None:
    line = ["--nnodes=1:2", *_c10d(_port())]
    jobs = [driver.start(True, *line, PROBE) for _ in range(2)]

    assert _finish(jobs) == [0, 0]
    assert [job.probes[0]["env"]["WORLD_SIZE"] for job in jobs] == ["2", "2"]


@pytest.mark.rest
def test_a_range_of_nodes_forms_without_those_that_do_not_come(driver: Driver) -> None:
    conf = "--rdzv-conf=last_call_timeout=1"

    ours = driver.run(True, "--nnodes=1:2", *_c10d(_port()), conf, PROBE)

    assert ours.code == 0
    assert ours.probes[0]["env"]["WORLD_SIZE"] == "1"


@pytest.mark.rest
def test_a_node_that_comes_late_is_taken_in_without_a_restart_that_counts(driver: Driver) -> None:
    line = ["--nnodes=1:2", *_c10d(_port()), "--rdzv-conf=last_call_timeout=0.3"]
    first = driver.start(True, *line, PROBE, PROBE_DO="0:*:print=READY 0:*:wait=3")
    first.expect(1, "READY")

    second = driver.start(True, *line, PROBE)

    assert _finish([first, second]) == [0, 0]
    assert [p["env"]["WORLD_SIZE"] for p in first.probes] == ["1", "2"]
    assert {p["restart"] for p in first.probes + second.probes} == {0}


def test_a_node_that_is_lost_is_noticed_and_the_rest_goes_on(driver: Driver) -> None:
    line = ["--nnodes=1:2", *_c10d(_port()), "--rdzv-conf=last_call_timeout=5"]
    first = driver.start(True, *line, "--node-rank=0", PROBE, PROBE_DO="0:*:print=READY 0:*:wait=4")
    first.expect_error("meet at")  # So it is the one that has the coordinator.
    second = driver.start(True, *line, "--node-rank=1", PROBE, PROBE_DO="*:*:wait=60")
    first.expect(1, "READY")
    second.expect(1)

    second.send(signal.SIGKILL)
    second.finish()

    assert first.finish() == 0
    assert [p["env"]["WORLD_SIZE"] for p in first.probes] == ["2", "1"]


def test_a_node_that_is_told_to_end_leaves_with_grace_and_the_rest_goes_on(driver: Driver) -> None:
    line = ["--nnodes=1:2", *_c10d(_port()), "--rdzv-conf=last_call_timeout=5"]
    do = "0:*:print=READY 0:*:wait=1 1:*:catch=SIGTERM 1:*:print=READY 1:*:wait=0.5"
    first = driver.start(True, *line, "--node-rank=0", PROBE, PROBE_DO=do)
    first.expect_error("meet at")  # So it is the one that has the coordinator.
    second = driver.start(True, *line, "--node-rank=1", PROBE, PROBE_DO=do)
    first.expect(1, "READY")
    second.expect(1, "READY")

    second.send(signal.SIGTERM)

    assert _finish([first, second]) == [0, ExitCode.TERMINATED]
    assert second.count("GOT SIGTERM") == 1
    assert [p["env"]["WORLD_SIZE"] for p in first.probes] == ["2", "1"]
    assert {p["restart"] for p in first.probes} == {0}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_job_that_needs_all_its_nodes_ends_with_one(driver: Driver, name: str) -> None:
    port = _port()
    jobs = [driver.start(True, *_static(port, node), PROBE, PROBE_DO=HANG) for node in range(2)]
    for job in jobs:
        job.expect(1)

    jobs[1].send(signal.Signals[name])

    assert _finish(jobs) == [128 + signal.Signals[name]] * 2


@pytest.mark.rest
def test_a_node_too_many_is_a_spare_that_steps_in_or_ends_well(driver: Driver) -> None:
    line = ["--nnodes=2", *_c10d(_port())]
    first = driver.start(True, *line, "--node-rank=0", PROBE, PROBE_DO="*:*:wait=5")
    first.expect_error("meet at")  # So it is the one that has the coordinator.
    second = driver.start(True, *line, "--node-rank=1", PROBE, PROBE_DO=HANG)
    second.expect(1)
    spares = [driver.start(True, *line, PROBE) for _ in range(2)]
    for spare in spares:
        spare.expect_error("waits as a spare")

    second.send(signal.SIGKILL)
    second.finish()

    assert _finish([first, *spares]) == [0, 0, 0]
    assert sorted(len(spare.probes) for spare in spares) == [0, 1]
    assert [(p["env"]["WORLD_SIZE"], p["restart"]) for p in first.probes] == [("2", 0)] * 2


@pytest.mark.rest
def test_two_spares_that_step_in_at_once_both_take_part(driver: Driver) -> None:
    line, waits = ["--nnodes=5", *_c10d(_port())], {"PROBE_DO": "*:*:wait=5"}
    first = driver.start(True, *line, "--node-rank=0", PROBE, **waits)
    first.expect_error("meet at")  # So it is the one that has the coordinator.
    stay = [driver.start(True, *line, f"--node-rank={n}", PROBE, **waits) for n in (1, 2)]
    lost = [
        driver.start(True, *line, f"--node-rank={n}", PROBE, PROBE_DO="*:*:wait=60") for n in (3, 4)
    ]
    for one in lost:
        one.expect(1)
    spares = [driver.start(True, *line, PROBE, **waits) for _ in range(2)]
    for spare in spares:
        spare.expect_error("waits as a spare")

    for one in lost:
        one.send(signal.SIGKILL)
    for one in lost:
        one.finish()

    assert _finish([first, *stay, *spares]) == [0] * 5
    assert [len(spare.probes) for spare in spares] == [1, 1]
    assert [(p["env"]["WORLD_SIZE"], p["restart"]) for p in first.probes] == [("5", 0)] * 2


@pytest.mark.rest
def test_one_count_of_restarts_for_all_nodes(driver: Driver) -> None:
    port = _port()
    do = "1:0:exit=3 0:0:wait=60 0:1:exit=4 1:1:wait=60"
    jobs = [
        driver.start(True, *_static(port, node), "--max-restarts=2", PROBE, PROBE_DO=do)
        for node in range(2)
    ]

    assert _finish(jobs) == [0, 0]
    for job in jobs:
        last = job.probes[-1]
        assert last["env"]["TORCHELASTIC_RESTART_COUNT"] == "2"
    ports = [[p["env"]["MASTER_PORT"] for p in job.probes if p["restart"] == 2] for job in jobs]
    assert ports[0] == ports[1]


@pytest.mark.rest
def test_every_node_names_the_same_cause(driver: Driver) -> None:
    """Check 3 of the user experience: 20 kills, each told alike by both launchers."""
    for run in range(20):
        port, victim = _port(), run % 2
        jobs = [driver.start(True, *_static(port, node), PROBE, PROBE_DO=HANG) for node in range(2)]
        for job in jobs:
            job.expect(1)
        os.kill(jobs[victim].probes[0]["pid"], signal.SIGKILL)

        assert _finish(jobs) == [137, 137]
        causes = {
            line for job in jobs for line in job.err.splitlines() if line.startswith("FAILED")
        }
        assert len(causes) == 1 and f"rank {victim} " in causes.pop()


@pytest.mark.rest
@pytest.mark.parametrize(("how", "code"), [("exit=7", 7), ("signal=11", 139)])
def test_every_node_leaves_with_the_code_of_the_cause(driver: Driver, how: str, code: int) -> None:
    """Check 5 of the user experience, for several nodes."""
    port = _port()
    jobs = [
        driver.start(True, *_static(port, node), PROBE, PROBE_DO=f"1:*:{how} 0:*:wait=60")
        for node in range(2)
    ]

    assert _finish(jobs) == [code, code]
    causes = {line for job in jobs for line in job.err.splitlines() if line.startswith("FAILED")}
    assert len(causes) == 1 and "rank 1 " in causes.pop()


@pytest.mark.rest
@pytest.mark.parametrize("words", ["library", "own"])
@pytest.mark.parametrize("root", [0, 1])
def test_a_victim_that_ends_before_its_cause_is_not_blamed(
    driver: Driver, root: int, words: str
) -> None:
    port, meeting = _port(), _port()
    script = [str(SCRIPTS / "peers.py"), str(meeting), str(root), words]
    jobs = [driver.start(True, *_static(port, node), *script) for node in range(2)]

    assert _finish(jobs) == [1, 1]
    for job in jobs:
        assert f"FAILED: rank {root} exited with code 1: ValueError: bad shard" in job.err


# ------------------------------------------------------------------------------- with torch


@pytest.mark.rest
@pytest.mark.parametrize("how", ["store", "tcp", "env"])
def test_scripts_that_meet_by_themselves(driver: Driver, how: str) -> None:
    job = driver.run(True, "--nproc-per-node=2", str(SCRIPTS / "own_store.py"), how)

    assert job.code == 0
    assert job.count("MET") == 2


@pytest.mark.rest
def test_a_restart_with_gloo_is_no_coin_toss(driver: Driver) -> None:
    script = str(SCRIPTS / "own_store.py")

    job = driver.run(True, "--nproc-per-node=2", "--max-restarts=1", script, "env", "die")

    assert job.code == 0
    assert job.count("MET") == 2


# ------------------------------------------------------------------------------- as people write


def test_slurm_with_c10d(driver: Driver) -> None:
    port = _port()
    line = [
        "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_id", "4711", "--rdzv_backend", "c10d",
        "--rdzv_endpoint", f"127.0.0.1:{port}", PROBE, "50", "10",
    ]  # fmt: skip
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
             "SLURM_STEP_NODELIST": "nowhere-[1-2]"}  # fmt: skip
    jobs = [driver.start(True, *line, **slurm, SLURM_NODEID=str(node)) for node in range(2)]

    assert _finish(jobs) == [0, 0]
    assert [job.probes[0]["argv"] for job in jobs] == [["50", "10"]] * 2


def test_skypilot_static(driver: Driver) -> None:
    port = _port()
    jobs = [
        driver.start(
            True, "--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1",
            f"--master_port={port}", f"--node_rank={node}", PROBE, "--batch-size", "8",
        )
        for node in range(2)
    ]  # fmt: skip

    assert _finish(jobs) == [0, 0]


@pytest.mark.rest
def test_torchtitan(driver: Driver) -> None:
    theirs, ours = driver.both(
        "--nproc_per_node=2", "--rdzv_backend", "c10d", "--rdzv_endpoint=localhost:0",
        "--local-ranks-filter", "0", "--role", "rank", "--tee", "3", "-m", "probe",
        "--module", "llama3", "--config", "debug",
    )  # fmt: skip

    assert (theirs.code, ours.code) == (0, 0)
    assert [p["argv"] for p in theirs.probes] == [p["argv"] for p in ours.probes]


@pytest.mark.rest
def test_torchx(driver: Driver) -> None:
    theirs, ours = driver.both(
        "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--rdzv_id", "app",
        "--nnodes", "1", "--nproc_per_node", "2", "--tee", "3", "--role", "", PROBE,
    )  # fmt: skip

    assert (theirs.code, ours.code) == (0, 0)
    assert len(ours.probes) == 2


@pytest.mark.rest
def test_kubeflow(driver: Driver) -> None:
    port = _port()
    jobs = [
        driver.start(
            True, PROBE, PET_NNODES="2", PET_NPROC_PER_NODE="1", PET_NODE_RANK=str(node),
            PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=str(port),
            JOB_COMPLETION_INDEX=str(node),
        )
        for node in range(2)
    ]  # fmt: skip

    assert _finish(jobs) == [0, 0]
    assert [job.probes[0]["env"]["RANK"] for job in jobs] == ["0", "1"]


@pytest.mark.rest
def test_a_leader_worker_set_needs_no_options_at_all(driver: Driver) -> None:
    lws = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2"}
    port = "--rdzv-conf=join_timeout=30"
    jobs = [driver.start(True, port, PROBE, **lws, LWS_WORKER_INDEX=str(node)) for node in range(2)]

    assert _finish(jobs) == [0, 0]
    assert [job.probes[0]["env"]["RANK"] for job in jobs] == ["0", "1"]
