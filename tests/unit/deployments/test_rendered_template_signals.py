"""The shell of a pod of a LeaderWorkerSet tells its launcher that the pod has to end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from recoverrun.deployments.rendered_template import Values, rendered
from rendezvous.protocol.exit_codes import ExitCode

PATIENCE_S = 20.0

LAUNCHER = """#!/bin/sh
trap 'echo told; sleep 0.1; exit 143' TERM
echo begins
[ -z "$CODE" ] || exit "$CODE"
while :; do sleep 0.05; done
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of programs, with a launcher that needs a moment to end."""
    (tmp_path / "recoverrun").write_text(LAUNCHER)
    (tmp_path / "recoverrun").chmod(0o755)
    return tmp_path


def pod(folder: Path, code: str) -> subprocess.Popen[str]:
    """The container's process, with the launcher that ends with `code`, or else with SIGTERM."""
    spec = yaml.safe_load(rendered("lws", Values()))["spec"]["leaderWorkerTemplate"]
    (container,) = spec["workerTemplate"]["spec"]["containers"]
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "CODE": code}
    return subprocess.Popen(
        [*container["command"], *container["args"]], env=environ, stdout=subprocess.PIPE, text=True
    )


def test_the_end_of_a_pod_is_the_launchers_end(folder: Path) -> None:
    with pod(folder, "") as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "begins\n"
        shell.send_signal(signal.SIGTERM)
        said = shell.stdout.read()

        assert said == "told\n"
        assert shell.wait(PATIENCE_S) == ExitCode.TERMINATED


def test_a_job_that_may_go_better_again_ends_its_container(folder: Path) -> None:
    with pod(folder, "81") as shell:
        assert shell.wait(PATIENCE_S) == ExitCode.BELOW_MINIMUM


def test_a_pod_whose_job_is_done_stays_and_ends_as_soon_as_it_is_told(folder: Path) -> None:
    with pod(folder, "0") as shell:
        assert shell.stdout is not None
        assert [shell.stdout.readline() for _ in range(2)] == ["begins\n", "ended with 0\n"]
        shell.send_signal(signal.SIGTERM)

        assert shell.wait(PATIENCE_S) == 0
