"""The same command line gives the same workers: arguments, places and environment."""

import os
import sys

import pytest

from tests.parity.driver import PROBE, Driver, Job

pytestmark = pytest.mark.e2e

EQUAL = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip

TWO = "--nproc-per-node=2"

LINES: dict[str, list[str]] = {
    "plain": [PROBE],
    "two workers": ["--nproc_per_node", "2", PROBE, "a"],
    "help is the script's": [PROBE, "-h", "--help"],
    "options behind the script": [PROBE, "--nproc-per-node", "3", "--rdzv_id=x", "-m"],
    "dashes before the script": ["--", PROBE, "a"],
    "dashes behind the script": [PROBE, "--", "--a"],
    "dashes further behind": [PROBE, "a", "--", "b"],
    "odd arguments": [PROBE, "", "ü ø", "a b", "*", "-", "--x="],
    "macros": [TWO, PROBE, "${local_rank}", "$local_rank", "$$x", "${other}", "a$"],
    "a module": ["-m", "probe", "--module", "x"],
    "a module after options": ["-m", TWO, "probe", "a"],
    "no python": ["--no-python", sys.executable, PROBE, "a"],
    "standalone": ["--standalone", "--nnodes=1", TWO, PROBE],
    "a range of one": ["--nnodes=1:1", TWO, PROBE],
    "c10d on port 0": ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", TWO, PROBE],
    "a role": ["--role=trainer", TWO, PROBE],
    "an empty role": ["--role", "", TWO, PROBE],
    "an id": ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job", PROBE],
    "restarts allowed": ["--max_restarts=3", TWO, PROBE],
    "as many as CPUs": ["--nproc-per-node=cpu", PROBE],
    "auto": ["--nproc-per-node=auto", PROBE],
    "quoted configuration": ["--rdzv-conf", "'read_timeout=5,timeout=5'", PROBE],
    "other signals": ["--signals-to-handle=SIGTERM,SIGUSR1", PROBE],
    "virtual local rank": ["--virtual-local-rank", TWO, PROBE],
    "monitor interval": ["--monitor_interval=0.05", "--start-method=fork", PROBE],
    "redirect by its short name": ["--redirect=0", "-t", "0", PROBE],
    "static on one node": ["--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1", TWO, PROBE],
}

VARIABLES: dict[str, dict[str, str]] = {
    "nproc": {"PET_NPROC_PER_NODE": "2"},
    "standalone": {"PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2"},
    "a switch that is off": {"PET_MODULE": "0", "PET_NO_PYTHON": "0"},
    "restarts and role": {"PET_MAX_RESTARTS": "2", "PET_ROLE": "r", "PET_RDZV_ID": "x"},
    "streams": {"PET_REDIRECTS": "0", "PET_TEE": "0", "PET_SHUTDOWN_TIMEOUT": "3"},
    "kept by the user": {"PET_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "7",
                         "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
    "overwritten": {"RANK": "77", "WORLD_SIZE": "99", "MASTER_ADDR": "nowhere", "LOCAL_RANK": "5"},
    "devices": {"CUDA_VISIBLE_DEVICES": "3,4", "PET_VIRTUAL_LOCAL_RANK": "1",
                "PET_NPROC_PER_NODE": "2"},
}  # fmt: skip


def _workers(job: Job) -> list[tuple[object, ...]]:
    return [
        (p["argv"], p["name"], p["file"], _place(job, p["path"]), p["sid"] == p["pid"],
         {name: p["env"].get(name) for name in EQUAL}, _threads(p["env"]))
        for p in job.probes
    ]  # fmt: skip


def _threads(environ: dict[str, str]) -> str | None:
    """Threads are set or not by both; how many is torchrun's 1 or our share of the cores."""
    text = environ.get("OMP_NUM_THREADS")
    most = len(os.sched_getaffinity(0)) // int(environ["LOCAL_WORLD_SIZE"])
    return "chosen" if text is not None and 1 <= int(text) <= max(1, most) else text


def _place(job: Job, folder: str) -> str:
    """The first entry of sys.path."""
    return "." if folder == job.folder.name else folder


def _names(job: Job) -> set[str]:
    """Variables of a worker that the launcher was not given."""
    given = set(os.environ) | {"PYTHONPATH", "PARITY_MARK", "TMPDIR"}
    return {n for n in job.probes[0]["env"] if n not in given and not n.startswith("RECOVERRUN_")}


def _compare(theirs: Job, ours: Job) -> None:
    assert (theirs.code, ours.code) == (0, 0)
    assert theirs.probes, "there is something to compare"
    assert _workers(ours) == _workers(theirs)
    assert _names(ours) == _names(theirs)


@pytest.mark.parametrize("line", list(LINES.values()), ids=list(LINES))
def test_a_command_line_means_the_same(driver: Driver, line: list[str]) -> None:
    _compare(*driver.both(*line))


@pytest.mark.parametrize("variables", list(VARIABLES.values()), ids=list(VARIABLES))
def test_variables_mean_the_same(driver: Driver, variables: dict[str, str]) -> None:
    _compare(*driver.both(PROBE, **variables))


@pytest.mark.rest
def test_a_run_path_runs(driver: Driver) -> None:
    # Under torchrun sys.path begins with the launcher's folder, with us with the script's.
    theirs, ours = driver.both("--run-path", "--no-python", PROBE, "a")

    assert (theirs.code, ours.code) == (0, 0)
    for job in (theirs, ours):
        assert (job.probes[0]["argv"], job.probes[0]["name"]) == (["a"], "__main__")


def test_the_command_line_is_stronger_than_the_variable(driver: Driver) -> None:
    _compare(*driver.both("--nproc-per-node=1", PROBE, PET_NPROC_PER_NODE="2"))


def test_an_id_that_was_given_is_the_run_id(driver: Driver) -> None:
    line = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job", PROBE]

    runs = [job.probes[0]["env"]["TORCHELASTIC_RUN_ID"] for job in driver.both(*line)]

    assert runs == ["job", "job"]


def test_a_flag_of_the_script_is_never_eaten(driver: Driver) -> None:
    theirs, ours = driver.both(PROBE, "--r=16")

    assert theirs.code == 2
    assert ours.probes[0]["argv"] == ["--r=16"]


@pytest.mark.parametrize(
    ("line", "theirs"),
    [
        (["--no-such-option", PROBE], 2),
        (["--nnodes"], 2),
        (["--node-rank=one", PROBE], 2),
        (["--start-method=thread", PROBE], 2),
        ([], 2),
        (["--nnodes=0", PROBE], 1),
        (["--nnodes=2:1", PROBE], 1),
        (["--nnodes=1:2:3", PROBE], 1),
        (["--nproc-per-node=0", PROBE], 1),
        (["--nproc-per-node=many", PROBE], 1),
        (["--max-restarts=-1", PROBE], 1),
        (["--redirects=9", PROBE], 1),
        (["--rdzv-conf=a", PROBE], 1),
        (["--rdzv-backend=zeus", PROBE], 1),
        (["--local-ranks-filter=a", PROBE], 1),
        (["-m", "--no-python", PROBE], 1),
        (["--no-python", "no-such-program"], 1),
        (["no_such_script.py"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_refused_by_both_and_by_us_in_one_sentence(
    driver: Driver, line: list[str], theirs: int
) -> None:
    their_job, our_job = driver.both(*line)

    assert (their_job.code, our_job.code) == (theirs, 2)
    assert not our_job.out
    assert len(our_job.err.splitlines()) == 1
