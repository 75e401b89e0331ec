"""Whoever ends `inject` or `demo` ends the run: nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.launching import FAKE_WORKER, ROOT, await_death

pytestmark = pytest.mark.e2e

PATIENCE_S = 90.0  # a launcher gives its workers up to 30 s before it kills them
RANKS = 2


@contextmanager
def _trial(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose workers hang."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "recoverrun", *command], cwd=folder, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, preexec_fn=_hear_all,
        )  # fmt: skip
    try:
        until = time.monotonic() + PATIENCE_S
        while _hanging(folder) < RANKS:
            assert time.monotonic() < until and process.poll() is None, _journal(folder)
            time.sleep(0.05)  # Files that other processes write: there is nothing to wait on.
        yield process
    finally:
        family = [one for one in psutil.process_iter() if str(folder) in _words(one)]
        for one in family:
            one.kill()
        process.wait(timeout=PATIENCE_S)
    assert not family, f"left behind: {family}"


def _hear_all() -> None:
    """A shell starts what runs behind it with SIGINT and SIGQUIT ignored, and so would all be that
    these tests start.
    """
    for number in ENDS:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)


def _hanging(folder: Path) -> int:
    """The number of workers that have come to where they stay."""
    said = (folder / "output").read_text(errors="replace").count(": hangs")
    return said + len(list(folder.glob("hangs.*")))


def _inject(folder: Path) -> tuple[str, ...]:
    job = ("--no-python", sys.executable, FAKE_WORKER, "*:hello hang")
    own = ("inject", "--kill=r1@step:999:reduce", f"--run-dir={folder / 'run'}")
    return (*own, f"--nproc-per-node={RANKS}", *job)


def _demo(folder: Path) -> tuple[str, ...]:
    script = folder / "hang.py"
    script.write_text(
        "import os, signal\nopen(f'hangs.{os.environ[\"RANK\"]}', 'w').close()\nsignal.pause()\n"
    )
    own = ("demo", f"--replicas={RANKS}", "--shards=1", f"--script={script}")
    return (*own, f"--directory={folder / 'runs'}")


def _journal(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob("**/events.*.jsonl")))


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _tree(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


ENDS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL]


@pytest.mark.parametrize(
    ("command", "number"), [*((_inject, number) for number in ENDS), (_demo, signal.SIGTERM)]
)
def test_who_ends_a_trial_ends_its_run(
    tmp_path: Path, command: Callable[[Path], tuple[str, ...]], number: signal.Signals
) -> None:
    with _trial(tmp_path, *command(tmp_path)) as process:
        family = _tree(process.pid)
        assert len(family) > RANKS  # a launcher and its workers at least

        process.send_signal(number)

        for pid in family:
            await_death(pid, PATIENCE_S)
        code = process.wait(timeout=PATIENCE_S)
    assert code == (-number if number == signal.SIGKILL else 128 + number)


def test_the_launcher_hears_of_one_signal_once(tmp_path: Path) -> None:
    with _trial(tmp_path, *_inject(tmp_path)) as process:
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
        process.wait(timeout=PATIENCE_S)

    kills = [line for line in _journal(tmp_path).splitlines() if '"worker.kill"' in line]
    assert len(kills) == 1 and "SIGINT" in kills[0]
