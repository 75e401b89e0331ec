"""A rank whose CPU others have: it is named, and that it is no fault of its own."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import Job
from tests.e2e.judge import nothing_left
from tests.e2e.runs import recoverrun, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

TRAINING = Job(name="ddp3x1-endless", script="canary_ddp.py", ranks=3, steps=100_000, width=200)
BUSY = 4
"""Loops that have one CPU with the rank."""


@contextmanager
def _loops(cpu: int) -> Iterator[None]:
    command = ["sh", "-c", "while :; do :; done"]
    loops = [subprocess.Popen(command) for _ in range(BUSY)]
    try:
        for loop in loops:
            os.sched_setaffinity(loop.pid, {cpu})
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _is_it(record: dict[str, Any]) -> bool:
    return bool(record["rank"] == 1 and record["kind"] == "cpu")


def test_a_rank_whose_cpu_others_have_is_named_with_that_cause(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("on one CPU all ranks wait alike")
    with running(TRAINING, tmp_path / "run", bound_s=240) as run, _loops(cpus[-1]):
        run.await_record("step.commit")
        for rank in range(TRAINING.ranks):
            own = {cpus[-1]} if rank == 1 else set(cpus[:-1])
            for thread in os.listdir(f"/proc/{run.pid_of(rank)}/task"):
                os.sched_setaffinity(int(thread), own)
        found = run.await_record("straggler.find", _is_it)  # another one may be named before
        run.terminate()
        run.finish()
        nothing_left(run)

    assert found["reason"].endswith(": it waits for a CPU while others have those of its node")
    assert found["reason"] in run.output()
    told = json.loads(recoverrun("postmortem", str(run.journal), "--json").stdout)
    assert (1, "cpu") in [(one["rank"], one["kind"]) for one in told["stragglers"]]
    shown = recoverrun("postmortem", str(run.journal)).stdout
    assert "waiting for a CPU that others have" in " ".join(shown.split())
