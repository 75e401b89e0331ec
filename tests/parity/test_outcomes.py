"""The ends of jobs: exit codes, signals, restarts, and nothing that stays behind."""

import json
import re
import signal
from typing import Any

import pytest

from rendezvous.journal.step_lines import full_lines
from rendezvous.protocol.exit_codes import ExitCode
from tests.parity.driver import PROBE, Driver, survivors

pytestmark = pytest.mark.e2e

TWO = "--nproc-per-node=2"
HANG = "*:*:wait=60"


@pytest.mark.parametrize(
    ("do", "theirs", "ours"),
    [
        ("", 0, 0),
        ("*:*:exit=0", 0, 0),
        ("1:*:exit=7 0:*:wait=60", 1, 7),
        ("0:*:exit=79 1:*:wait=60", 1, 79),
        ("0:*:exit=200 1:*:wait=60", 1, 1),
        ("1:*:raise=boom 0:*:wait=60", 1, 1),
        ("1:*:signal=9 0:*:wait=60", 1, 137),
        ("1:*:signal=11 0:*:wait=60", 1, 139),
        ("1:*:signal=6 0:*:wait=60", 1, 134),
    ],
)
def test_exit_codes(driver: Driver, do: str, theirs: int, ours: int) -> None:
    """Check 5 of the user experience; that all nodes agree is in `test_nodes`."""
    their_job, our_job = driver.both(TWO, PROBE, PROBE_DO=do)

    assert (their_job.code, our_job.code) == (theirs, ours)


@pytest.mark.parametrize("nproc", [4, 16])
def test_one_exception_is_a_short_report_with_the_cause_first(driver: Driver, nproc: int) -> None:
    last = nproc - 1
    do = f"{last}:*:raise=boom " + " ".join(f"{rank}:*:wait=60" for rank in range(last))

    job = driver.run(True, f"--nproc-per-node={nproc}", "--redirects=2", PROBE, PROBE_DO=do)

    report = job.err[job.err.index("FAILED") :].splitlines()
    assert len(report) <= 12
    assert f"rank {last}" in report[0] and "ValueError: boom" in report[0]
    assert "probe.py:" in report[1] and "raise ValueError(value)" in report[2]
    assert "Traceback" not in job.err


def test_a_reply_file_is_read_as_torchruns(driver: Driver) -> None:
    theirs, ours = driver.both(TWO, PROBE, PROBE_DO="1:*:reply=lost 0:*:wait=60")

    assert (theirs.code, ours.code) == (1, 1)
    assert "KeyError: lost" in ours.err
    assert "Traceback: here" in theirs.err


def test_whoever_started_the_launcher_finds_the_cause_in_its_file(driver: Driver) -> None:
    do = "1:*:reply=lost 0:*:wait=60"

    for job in driver.both(TWO, PROBE, PROBE_DO=do, TORCHELASTIC_ERROR_FILE="reply.json"):
        message = json.loads((job.folder / "reply.json").read_text())["message"]
        assert (message["message"], message["errorCode"]) == ("KeyError: lost", 1)


# ------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("how", ["exit=7", "signal=9", "raise=boom"])
def test_all_ranks_start_again(driver: Driver, how: str) -> None:
    do = f"1:0:{how} 0:0:wait=60 0:1:wait=60 1:1:{how}"

    theirs, ours = driver.both("--max-restarts=2", TWO, PROBE, PROBE_DO=do)

    assert (theirs.code, ours.code) == (0, 0)
    seen = [(probe["restart"], probe["rank"]) for probe in ours.probes if probe["restart"] == 2]
    assert seen == [(2, 0), (2, 1)]
    last = ours.probes[-1]["env"]
    assert (last["TORCHELASTIC_RESTART_COUNT"], last["TORCHELASTIC_MAX_RESTARTS"]) == ("2", "2")
    assert {p["restart"] for p in theirs.probes} == {p["restart"] for p in ours.probes} == {0, 1, 2}


def test_every_attempt_has_a_port_of_its_own(driver: Driver) -> None:
    job = driver.run(True, "--max-restarts=2", PROBE, PROBE_DO="0:0:exit=1 0:1:exit=1")

    assert job.code == 0
    assert len({probe["env"]["MASTER_PORT"] for probe in job.probes}) == 3


def test_restarts_come_to_an_end(driver: Driver) -> None:
    theirs, ours = driver.both("--max-restarts=1", TWO, PROBE, PROBE_DO="1:*:exit=7 0:*:wait=60")

    assert (theirs.code, ours.code) == (1, 7)
    assert {p["restart"] for p in ours.probes} == {0, 1}


def test_the_same_exception_three_times_is_not_tried_again(driver: Driver) -> None:
    job = driver.run(True, "--max-restarts=2", PROBE, PROBE_DO="0:*:raise=bad_shard")

    assert job.code == ExitCode.DO_NOT_REQUEUE
    assert "3 of 3 tries" in job.err


# ------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_is_passed_on_and_ends_the_job(driver: Driver, name: str) -> None:
    number = signal.Signals[name]
    do = f"*:*:catch={name} *:*:print=READY *:*:wait=1"
    codes = []
    for ours in (False, True):
        job = driver.start(ours, TWO, PROBE, PROBE_DO=do)
        job.expect(2, "READY")
        job.send(number)
        codes.append(job.finish())
        assert job.count(f"GOT {name}") == 2

    assert codes == [1, 128 + number]


@pytest.mark.rest
def test_the_patience_with_workers_is_the_users_on_every_path(driver: Driver) -> None:
    do = "*:*:stubborn *:*:print=READY 1:*:wait=0.2 1:*:exit=5 0:*:wait=60"

    job = driver.run(True, TWO, "--shutdown-timeout=1", PROBE, PROBE_DO=do)

    assert job.code == 5
    found = re.search(r"journal: (.*)", job.err)
    assert found is not None
    (path,) = (job.folder / found[1]).glob("events.*.jsonl")
    lines: list[Any] = full_lines(path.read_bytes().splitlines())
    kills = [line for line in lines if line["ev"] == "worker.kill"]
    assert [line["signal"] for line in kills] == ["SIGTERM", "SIGKILL"]
    assert 0.9 < kills[1]["mono"] - kills[0]["mono"] < 3


def test_a_warning_signal_is_never_deadly_to_the_launcher(driver: Driver) -> None:
    job = driver.start(True, PROBE, PROBE_DO="*:*:print=READY *:*:wait=0.7")
    job.expect(1, "READY")

    job.send(signal.SIGUSR1)

    assert job.finish() == 0
    assert "SIGUSR1 ignored" in job.err


def test_a_warning_signal_reaches_workers_on_request(driver: Driver) -> None:
    signals = "--signals-to-handle=SIGTERM,SIGUSR1"
    do = "*:*:catch=SIGUSR1 *:*:print=READY *:*:wait=0.7"
    job = driver.start(True, TWO, signals, PROBE, PROBE_DO=do)
    job.expect(2, "READY")

    job.send(signal.SIGUSR1)

    assert job.finish() == 0
    assert job.count("GOT SIGUSR1") == 2


def test_asked_twice_means_now(driver: Driver) -> None:
    do = "*:*:stubborn *:*:catch=SIGINT *:*:print=READY *:*:wait=60"
    job = driver.start(True, TWO, PROBE, PROBE_DO=do)
    job.expect(2, "READY")

    job.send(signal.SIGINT)
    job.expect(2, "GOT SIGINT")
    job.send(signal.SIGINT)

    assert job.finish() == ExitCode.INTERRUPTED


# ------------------------------------------------------------------------------- left behind


@pytest.mark.parametrize("child", ["child=", "child=own"])
def test_nothing_outlives_a_killed_launcher(driver: Driver, child: str) -> None:
    left = []
    for ours in (False, True):
        job = driver.start(ours, TWO, PROBE, PROBE_DO=f"*:*:{child} *:*:print=READY *:*:wait=60")
        job.expect(2, "READY")
        job.send(signal.SIGKILL)
        job.finish()
        left.append(len(job.left))

    assert left == [4, 0]


@pytest.mark.parametrize("child", ["child=", "child=own"])
def test_children_of_a_dead_worker_go_with_it(driver: Driver, child: str) -> None:
    job = driver.run(True, TWO, PROBE, PROBE_DO=f"1:*:{child} 1:*:signal=9 0:*:wait=60")

    assert job.code == 137  # That nothing is left is checked for every case.


@pytest.mark.rest
def test_children_that_a_good_end_leaves_are_ended(driver: Driver) -> None:
    theirs, ours = driver.both(PROBE, PROBE_DO="0:*:child=own")

    assert (theirs.code, ours.code) == (0, 0)
    assert len(theirs.left) == 1


def test_a_restart_takes_the_children_of_the_attempt_along(driver: Driver) -> None:
    job = driver.start(
        True, "--max-restarts=1", PROBE, PROBE_DO="0:0:child=own 0:0:exit=1 0:1:print=READY "
        "0:1:wait=0.5"
    )  # fmt: skip
    job.expect(1, "READY")

    # The launcher, its guardian, and the worker of the second attempt.
    assert len(survivors(job.mark)) == 3
    assert job.finish() == 0
