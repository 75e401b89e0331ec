"""A sample that takes more memory than there is: the kernel ends whoever looks at it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.truth.case import SCRIPTS

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 3 << 29
WITHIN_S = 150.0

GROUPS = {"memory": "memory.limit_in_bytes", ".": "memory.max"}
"""Folders in which a control group can be made, and the name of its limit: classic, unified."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit of memory."""
    for where, limit in GROUPS.items():
        made = Path("/sys/fs/cgroup") / where / f"recoverrun-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            made.rmdir()
            continue
        try:
            yield made
        finally:
            made.rmdir()
        return
    pytest.skip("no control group with a limit of memory can be made here")


def test_who_is_out_of_memory_is_told_and_takes_nobody_along(group: Path, tmp_path: Path) -> None:
    run_dir, out = tmp_path / "run", tmp_path / "out"
    out.mkdir()
    command = (
        sys.executable, "-m", "recoverrun", "--nproc-per-node=2", "--no-return",
        f"--run-dir={run_dir}", str(SCRIPTS / "fatal.py"), str(out), "memory",
    )  # fmt: skip
    within = ("sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), *command)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    with subprocess.Popen(
        within, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        try:
            said, _ = launcher.communicate(timeout=WITHIN_S)
        finally:
            _end(launcher)

    assert launcher.returncode == 0, said
    assert "rank 1 was killed by SIGKILL (out of memory)" in said, said
    assert "is not executed again: a copy of this process was ended by it" in said, said
    assert sorted(path.name for path in out.glob("weights*")) == ["weights0.pt"], said
    assert torch.load(out / "weights0.pt", weights_only=True)
    told = subprocess.run(
        (sys.executable, "-m", "recoverrun", "postmortem", "--json", str(run_dir)),
        env=environment, stdout=subprocess.PIPE, check=True, text=True,
    ).stdout  # fmt: skip
    assert json.loads(told)["root_cause"]["cause"] == "out of memory"


ALONE = """
import os, pathlib, sys, time
if os.environ["RANK"] == "1":
    pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
held = []
while os.environ["RANK"] == "1":
    held.append(b"x" * (16 << 20))
    time.sleep(0.05)
"""
"""It leaks for five seconds: where each process is, the launcher looks up once a second."""


def test_a_rank_in_a_group_of_its_own_is_told_as_out_of_memory(group: Path, tmp_path: Path) -> None:
    script, run_dir = tmp_path / "alone.py", tmp_path / "run"
    script.write_text(ALONE)
    command = (
        sys.executable, "-m", "recoverrun", "--nproc-per-node=2", f"--run-dir={run_dir}",
        str(script), str(group),
    )  # fmt: skip

    told = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=False,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=WITHIN_S,
    )  # fmt: skip

    assert told.returncode == 137, told.stdout
    assert "rank 1 was killed by SIGKILL (out of memory)" in told.stdout, told.stdout


def _end(launcher: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        launcher.kill()
