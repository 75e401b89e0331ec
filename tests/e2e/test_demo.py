"""`recoverrun demo` and `recoverrun inject` as a user calls them: real processes, real kills."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATE = ROOT / "templates" / "gpt_hsdp.py"


def recoverrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "100",
    }
    return subprocess.run(
        [sys.executable, "-m", "recoverrun", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=165,
    )


@pytest.mark.e2e
def test_the_demo_shows_the_same_training_with_a_killed_replica(tmp_path: Path) -> None:
    """Check 15 of the user experience: max |Δw| is printed, and within the bound beside it."""
    done = recoverrun("demo", "--steps=20", "--kill=r3@step:4:reduce", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "with losses: 20/20 steps with exactly 8 microbatches" in done.stdout
    assert "8 · ✖" in done.stdout
    assert "replica 1 (ranks 2, 3) is back at step" in done.stdout
    assert "1 kill, 1 loss survived, 1 return" in done.stdout
    assert "final weights of 4 of 4 survivors compared" in done.stdout
    number = r"(\d\.\d+e[+-]\d+)"
    told = re.search(
        rf"✓ max \|Δw\| {number}(?:: bitwise the same|, at most {number} by)", done.stdout
    )
    assert told is not None, done.stdout
    assert float(told[1]) <= float(told[2] or 0), done.stdout
    (directory,) = (tmp_path / "runs").glob("demo-*")
    assert {path.name for path in directory.iterdir()} == {"failure-free", "with-losses"}


@pytest.mark.rest
@pytest.mark.e2e
def test_inject_says_what_a_loss_has_cost(tmp_path: Path) -> None:
    done = recoverrun(
        "inject", "--kill=r2@step:3:forward", "--directory=here",
        "--nproc-per-node=4", str(TEMPLATE), "--steps=6",
        cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kill, 1 loss survived" in done.stdout
    assert "6/6 steps with exactly 8 microbatches" in done.stdout
    assert list((tmp_path / "here").glob("events.*.jsonl"))


@pytest.mark.rest
@pytest.mark.e2e
def test_inject_kills_a_replica_on_its_way_back(tmp_path: Path) -> None:
    done = recoverrun(
        "inject", "--kill=r1@step:3:forward", "--kill=r1@return:prologue", "--pace=1.5",
        "--directory=here", "--nproc-per-node=2", str(TEMPLATE), "--shard-size=1",
        "--steps=30", "--batch=1", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills, 1 loss survived, 1 return" in done.stdout
    assert "return in ms" in done.stdout and "never struck" not in done.stdout


@pytest.mark.rest
@pytest.mark.e2e
def test_the_demo_shows_the_way_back_of_the_only_replica(tmp_path: Path) -> None:
    done = recoverrun("demo", "--snapshots", "--steps=24", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 replica × 2 shards" in done.stdout
    assert "24 of 24 steps made" in done.stdout
    assert "1 kill, 0 losses survived, 1 way back to a snapshot" in done.stdout
    assert re.search(r"back to step \d+: \d+ steps? done again, away", done.stdout), done.stdout
    assert "final weights of 2 of 2 survivors compared" in done.stdout
    assert "max |Δw| 0.0e+00: bitwise the same weights" in done.stdout


@pytest.mark.rest
@pytest.mark.e2e
def test_inject_kills_the_only_replica_where_there_are_snapshots(tmp_path: Path) -> None:
    done = recoverrun(
        "inject", "--kill=all@step:12", "--directory=here", "--snapshot-every=4",
        "--nproc-per-node=2", str(TEMPLATE), "--steps=20", "--shard-size=2", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kill, 0 losses survived, 1 way back to a snapshot" in done.stdout
    assert "never struck" not in done.stdout


@pytest.mark.e2e
def test_a_kill_within_a_return_needs_returns(tmp_path: Path) -> None:
    done = recoverrun(
        "inject", "--kill=r1@return:ready", "--no-return", "--nproc-per-node=2", str(TEMPLATE),
        cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 2
    assert "it needs --return" in " ".join(done.stderr.split())


@pytest.mark.e2e
@pytest.mark.parametrize("command", ["demo", "inject"])
def test_a_schedule_that_cannot_be_is_refused_before_anything_runs(
    command: str, tmp_path: Path
) -> None:
    job = [] if command == "demo" else ["--nproc-per-node=4", str(TEMPLATE)]
    done = recoverrun(command, "--kill=r3@step:1:lunch", *job, cwd=tmp_path)

    assert done.returncode == 2
    assert "a phase is one of" in done.stderr
    assert not (tmp_path / "runs").exists()
