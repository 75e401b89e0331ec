"""Run directories on disks that stall or are full: no node is lost, and everybody is told."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.disks import Disk, disk, unusable
from tests.e2e.launching import ROOT, Launch, Launcher, launching

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(unusable()), reason=unusable() or "it can be mounted"),
]

REFUSAL = "this node's journal cannot be written"
AGAIN = "this node's journal is written again"
NODES = 3


@pytest.fixture
def first_disk(tmp_path: Path) -> Iterator[Disk]:
    """The disk with the run directory of the first launcher."""
    with disk(tmp_path / "run0", size=16 << 20) as mounted:
        yield mounted


@pytest.fixture
def launcher(tmp_path: Path, first_disk: Disk) -> Iterator[Launcher]:
    """Its launchers end before the disk goes, which has to work for that: nothing can end a process
    that waits in the kernel.
    """
    with launching(tmp_path) as launches:
        try:
            yield launches
        finally:
            first_disk.go_on()


def _longest_ms(launches: list[Launch]) -> int:
    found = [re.findall(r"trained \d+ s, longest answer (\d+) ms", one.output) for one in launches]
    return max(int(times[-1]) for times in found)


@pytest.mark.parametrize(
    "stall_s", [8, pytest.param(60, marks=[pytest.mark.matrix, pytest.mark.timeout(180)])]
)
def test_a_run_directory_that_stalls_costs_no_node_and_no_record(
    launcher: Launcher, first_disk: Disk, stall_s: int
) -> None:
    options = (f"--nnodes={NODES}", f"--rdzv-endpoint=127.0.0.1:{launcher.port()}")
    plan = f"*:hello topology meet=ready train={stall_s + 4} meet=end farewell=0"
    launches = [launcher.fake(plan, options=(*options, f"--node-rank={n}")) for n in range(NODES)]
    for rank, launch in enumerate(launches):
        launch.expect(f"rank {rank}: trained 1 s")

    first_disk.stop()
    for second in range(2, stall_s + 3):
        launches[0].expect(f"rank 0: trained {second} s")
    first_disk.go_on()
    codes = [launch.finish() for launch in launches]

    assert codes == [0] * NODES
    told = [(one.output.count(REFUSAL), one.output.count(AGAIN)) for one in launches]
    assert told == [(1, 1), (0, 0), (0, 0)], launches[0].output
    assert "nothing is missing" in launches[0].output
    records = launches[0].records("step.commit", "node.lost", "replica.lost", "journal.drop")
    assert [one["step"] for one in records] == list(range(len(records)))
    assert _longest_ms(launches) < 1000


def test_a_disk_that_fills_up_ends_nothing_and_hides_nothing(
    launcher: Launcher, first_disk: Disk
) -> None:
    job = launcher.fake("*:hello topology meet=ready train=8 farewell=0", nproc=2)
    job.expect("rank 0: trained 1 s")

    first_disk.fill()
    job.expect(f"{REFUSAL}: No space left on device; training goes on")

    assert job.finish() == 0
    assert job.output.count(f"{REFUSAL}: No space left") == 1  # it may have been slow before
    (last,) = re.findall(r"this node's journal is not whole: .* from step (\d+) on", job.output)
    assert job.records("run.end")[0]["exit_code"] == 0
    assert job.records("journal.drop")[0]["step"] == int(last)
    assert f"records are missing from step {last} on" in _postmortem(job.run_dir)


def test_a_disk_that_has_room_again_takes_the_journal_again(
    launcher: Launcher, first_disk: Disk
) -> None:
    job = launcher.fake("*:hello topology meet=ready train=12 farewell=0", nproc=2)
    job.expect("rank 0: trained 1 s")

    filling = first_disk.fill()
    job.expect(REFUSAL)
    filling.unlink()
    lost = job.expect(rf"{AGAIN}, after .*: (\d+) records? missing, from step (\d+) on")

    assert job.finish() == 0
    assert "not whole" not in job.output
    drops = job.records("journal.drop")
    assert sum(one["records"] for one in drops) == int(lost[1])
    assert drops[0]["step"] == int(lost[2])


def test_a_full_disk_is_refused_at_the_start(launcher: Launcher, first_disk: Disk) -> None:
    first_disk.fill()

    job = launcher.fake("*:exit=0")

    assert job.finish() == 2
    assert "has no room: No space left on device" in job.output
    assert len(job.output.splitlines()) == 1


def _postmortem(run_dir: Path) -> str:
    command = [sys.executable, "-m", "recoverrun", "postmortem", str(run_dir)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "132"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    return " ".join(done.stdout.split())
