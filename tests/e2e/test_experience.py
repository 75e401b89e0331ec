"""Checks of the user experience that no other file has. The others are named where they stand:
"Check N of the user experience".
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recoverrun.reports.postmortem import postmortem
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import ExitCode
from tests.chaos.net import net
from tests.e2e.launching import ROOT, Launcher
from tests.e2e.nodes import Nodes

pytestmark = pytest.mark.e2e

HELP_TIMES = 30
"""So many times the processor time of Python that does nothing: what a busy machine does to the one
it does to the other. That takes some 10 ms, and help should be there after 250.
"""

HELP = ("-m", "recoverrun", "--help")

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip"
)


def _cost_s(*words: str) -> float:
    """Processor time of Python with these words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *words]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.cold
def test_help_is_there_at_once_and_a_launcher_never_loads_torch(launcher: Launcher) -> None:
    """Check 1: what help costs, and no torch in a launcher."""
    bare, help_ = (min(_cost_s(*words) for _ in range(5)) for words in (("-c", ""), HELP))
    job = launcher.fake("*:hello hang", nproc=1)
    job.expect("rank 0: hangs")

    mapped = Path(f"/proc/{job.pid}/maps").read_text()
    job.send(signal.SIGTERM)

    assert "libtorch" not in mapped and "/torch/" not in mapped
    assert help_ < HELP_TIMES * bare
    assert job.finish() == ExitCode.TERMINATED


@pytest.mark.rest
@NEEDS_ROOT
@pytest.mark.parametrize(("how", "cause"), [("cut", "node-lost"), ("kill", "sigkill")])
def test_a_link_that_is_down_is_told_from_a_worker_that_is_killed(
    launcher: Launcher, how: str, cause: str
) -> None:
    """Check 7: three hosts, each in a network namespace of its own."""
    with net(3, f"ux{os.getpid()}") as hosts:
        nodes = Nodes(launcher, 3, host=hosts.host(0), within=hosts.within)
        if how == "cut":
            hosts.cut(2)
        else:
            (pid,) = nodes.launches[2].worker_pids().values()
            os.kill(pid, signal.SIGKILL)
        nodes.survivors_meet([0, 1])
        nodes.stop([0, 1])
        for launch in nodes.launches[2:]:
            launch.finish()

    seen = nodes.launches[: 2 if how == "cut" else 3]
    found = postmortem(read_run(*(launch.run_dir for launch in seen)))
    first = found.losses[0]  # Others may be lost as the test ends the job.
    assert (first.slot, first.cause.root.cause) == (2, cause)
