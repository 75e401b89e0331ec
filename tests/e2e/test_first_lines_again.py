"""A fresh process runs the script's first lines again, and what the run has written stays."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.returns import STEPS, WITHIN_S
from tests.e2e.runs import ROOT, running

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(400)]

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    script = "overwriting.py"
    ranks = 2
    shards = 0
    arguments = (f"--steps={STEPS}",)


@pytest.mark.parametrize("set_back", [False, True], ids=["clock-right", "clock-set-back"])
def test_logs_and_folders_of_the_run_are_not_begun_anew(tmp_path: Path, set_back: bool) -> None:
    clock, how = tmp_path / "clock", dict[str, Any]()
    if set_back:
        clock.write_text(str(HOUR_S))
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests/chaos/clock")])
        how["within"] = ("env", f"PYTHONPATH={path}", f"CHAOS_CLOCK={clock}")
        how["arguments"] = (f"--clock={clock}",)
    with running(
        Job(),
        tmp_path,
        inject="r0@step:6:forward",
        options=("--return",),
        bound_s=WITHIN_S,
        **how,
    ) as run:
        run.await_record("replica.prove", lambda _: True)
        run.await_output("its first lines run again, and leave what the run has written", 1)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        out = run.out
    log = (out / "results" / "log.csv").read_text().splitlines()

    assert log[0] == "step,loss" and json.loads((out / "results" / "config.json").read_text())
    assert [line.partition(",")[0] for line in log[1:]] == [str(step) for step in range(STEPS)]
    assert (out / "results" / "best.pt").exists()
    own = (out / "rank0.txt").read_text().splitlines()
    assert own[:7] == ["step", *map(str, range(6))] and own[-1] == str(STEPS - 1)
    assert own[1:] == sorted(set(own[1:]), key=int)
