"""A script finds in a fork what it finds in a process that was started cold."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.boot.test_spare import SCRIPT
from tests.warm.client import ROOT, Template, WarmProcess
from tests.warm.launchers import new_process

pytestmark = pytest.mark.e2e

OF_ONE_RUN = {"MASTER_PORT", "RECOVERRUN_CONTEXT", "RECOVERRUN_ENDPOINT", "RECOVERRUN_KEEPER",
              "RECOVERRUN_RUN_DIR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}  # fmt: skip


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with Template() as one:
        yield one


def started(start: Any, folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "recoverrun", f"--run-dir={folder}/run", *arguments]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1", "MARK": "me"}
    return start(command, cwd=folder, env=env, stdout=subprocess.PIPE)


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    (folder / "beside.py").touch()
    return str(path)


def test_a_script_finds_what_it_finds_where_all_processes_are_new(
    tmp_path: Path, template: Template
) -> None:
    found = {}
    for name, start in (("cold", new_process), ("warm", template.start)):
        out = tmp_path / f"{name}.json"
        process = started(start, tmp_path, script(tmp_path, SCRIPT), str(out))
        output = process.stdout.read().decode()
        assert process.wait() == 0, output
        process.stdout.close()
        assert "to stdout" in output and "to stderr" in output
        found[name] = json.loads(out.read_text())
    cold, warm = found["cold"], found["warm"]
    assert warm["argv"] == [arg.replace("/cold.", "/warm.") for arg in cold["argv"]]
    assert warm["orig"] == [arg.replace("/cold.", "/warm.") for arg in cold["orig"]]
    for one in (cold, warm):
        del one["argv"], one["orig"], one["files"]  # the pipes are two
        for name in OF_ONE_RUN:
            one["environ"].pop(name, None)
    for key in cold:
        assert warm[key] == cold[key], key


def test_its_end_is_told_and_the_system_shows_it_as_what_it_is(
    tmp_path: Path, template: Template
) -> None:
    text = "import os, signal; print('runs', os.getpid(), flush=True); signal.pause()"
    process: WarmProcess = started(template.start, tmp_path, script(tmp_path, text))
    assert process.stdout is not None
    pid = 0
    for line in process.stdout:
        if line.startswith(b"runs "):
            pid = int(line.split()[1])
            break

    assert process.poll() is None
    shown = [Path(f"/proc/{one}/cmdline").read_text().split("\0") for one in (process.pid, pid)]
    assert shown[0][:3] == [sys.executable, "-m", "recoverrun"]
    assert shown[1][1:4] == ["-u", "-m", "recoverrun.worker"]
    for one in (process.pid, pid):
        assert "MARK=me" in Path(f"/proc/{one}/environ").read_text().split("\0")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    end = os.pidfd_open(pid)
    process.kill()

    assert process.wait() == -signal.SIGKILL
    poll = select.poll()
    poll.register(end, select.POLLIN)
    assert poll.poll(30_000), "a worker does not outlive its launcher"
    os.close(end)
    process.stdout.close()


def test_what_it_has_forked_ends_with_it(tmp_path: Path) -> None:
    with Template() as template:
        text = "import signal; print('runs', flush=True); signal.pause()"
        process: WarmProcess = started(template.start, tmp_path, script(tmp_path, text))
        assert process.stdout is not None
        for line in process.stdout:
            if b"runs" in line:
                break

    assert process.poll() not in (None, 0)
    process.stdout.close()
