"""A run with `--on-event` and `--metrics-port` tells of itself, and leaves nothing behind."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from rendezvous.protocol.exit_codes import ExitCode
from tests.e2e.launching import ROOT, Launcher, free_port

pytestmark = pytest.mark.e2e


def test_a_run_tells_of_a_loss_and_its_end_once_and_its_numbers(
    launcher: Launcher, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    port = free_port()
    job = launcher.fake(
        "*:hello topology meet=ready view=2 farewell=0",
        "2:hello topology meet=ready sigkill",
        nproc=3,
        options=(f"--on-event=loss,end=cat >> {heard}; echo >> {heard}", f"--metrics-port={port}"),
    )
    job.expect(f"metrics at http://127.0.0.1:{port}/metrics")

    assert job.finish() == 0

    told = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [one["record"]["class"] for one in told] == ["loss", "end"]
    assert told[0]["record"]["root_rank"] == 2
    assert told[1]["text"].endswith("ended well")


@pytest.mark.rest
def test_a_companion_that_stands_still_is_ended_and_told_of(
    launcher: Launcher, tmp_path: Path
) -> None:
    job = launcher.fake("*:hello hang", options=(f"--on-event=end=touch {tmp_path}/told",))
    job.expect("rank 0: hangs")
    (companion,) = [
        one for one in psutil.Process(job.pid).children() if "recoverrun.companion" in one.cmdline()
    ]
    companion.suspend()

    job.send(signal.SIGTERM)

    assert job.finish() == ExitCode.TERMINATED
    job.expect("did not come to its end within 10 s, and was ended: the last events may not have")
    assert not companion.is_running() and not (tmp_path / "told").exists()


@pytest.mark.rest
def test_numbers_can_be_had_while_a_run_lives(launcher: Launcher) -> None:
    port = free_port()
    job = launcher.fake(
        "*:hello hang",
        nproc=2,
        options=(f"--metrics-port={port}",),
        env={"RECOVERRUN_NOTIFY_URL": "http://127.0.0.1:9/secret"},
    )
    job.expect("rank 0: hangs")
    job.expect("metrics at")

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert b"recoverrun_run_ended 0.0" in answer.read()
    children = psutil.Process(job.pid).children()
    companions = [one for one in children if "recoverrun.companion" in one.cmdline()]
    assert not any("secret" in word for word in companions[0].cmdline())
    job.send(15)

    assert job.finish() == ExitCode.TERMINATED
    assert len(companions) == 1
    assert not companions[0].is_running()


def test_a_run_without_these_options_imports_none_of_it() -> None:
    code = """
import sys
import recoverrun.cli.main, recoverrun.cli.commands.run
heavy = ("prometheus_client", "jinja2", "recoverrun.companion", "recoverrun.metrics",
         "recoverrun.doctor", "recoverrun.deployments", "http.server", "urllib.request")
print([name for name in heavy if name in sys.modules])
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip

    assert ran.stdout.strip() == "[]"
