"""Runs of recoverrun as processes: started, watched, killed by pid, and surely over at the end.

A run carries a mark in the environment of its launcher, which all its workers inherit: whatever has
it belongs to the run, wherever it has gone since.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rendezvous.journal.step_lines import full_lines
from rendezvous.protocol.progress_page import page_beside, read_page
from tests.e2e.fair_time import FairTime
from tests.e2e.jobs import Job
from tests.warm.launchers import LAUNCHERS, new_process

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/e2e/scripts"
BOUND_S = 90.0
"""A run takes seconds; one that has had so many and is not over hangs."""

TICK_S = 0.005
SHOW_STACKS = signal.SIGRTMIN + 7  # scripts/stacks/sitecustomize.py listens to it
Record = dict[str, Any]


class Run:
    """One launcher with its workers; `folder` takes all that they leave."""

    program: tuple[str, ...] = ("-m", "recoverrun")

    def __init__(
        self,
        job: Job,
        folder: Path,
        *,
        inject: str = "",
        options: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        bound_s: float = BOUND_S,
        within: tuple[str, ...] = (),
    ) -> None:
        """`within` is a command that runs the launcher somewhere else. Nobody comes back unless
        `options` has --return: most tests are about what survivors do alone.
        """
        self.job = job
        self.folder = folder
        self.journal = folder / "journal"
        self.out = folder / "out"
        self.bound_s = bound_s
        self._sizes: list[int] = []  # of the journal's files, as they were read
        self._known: list[Record] = []
        self._mark = f"KILL_MATRIX_MARK={uuid.uuid4().hex}"
        self._stacks = folder / "stacks"
        for new in (self.out, self._stacks):
            new.mkdir(parents=True)
        self.command = [
            *within, sys.executable, *self.program, f"--nproc-per-node={job.ranks}",
            *([f"--inject={inject}"] if inject else []), f"--run-dir={self.journal}",
            "--no-return", *options,
            str(SCRIPTS / job.script), f"--out={self.out}", *job.arguments, *arguments,
        ]  # fmt: skip
        with (folder / "output").open("wb") as output:
            warm = self.program == Run.program and not within
            start = LAUNCHERS.start if warm else new_process
            self._process = start(self.command, cwd=folder, env=self._environment(), stdout=output)
        self._time = FairTime(self._process.pid)

    def _environment(self) -> dict[str, str]:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("RECOVERRUN_")}
        name, _, value = self._mark.partition("=")
        return inherited | {
            name: value,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(SCRIPTS / "stacks")]),
            "KILL_MATRIX_STACKS": str(self._stacks),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    # --------------------------------------------------------------------------- what it leaves

    def records(self, *events: str) -> list[Record]:
        """The whole lines of the journal, of these events if any are named. Our own reader."""
        paths = sorted(self.journal.glob("events.*.jsonl"))
        sizes = [path.stat().st_size for path in paths]
        if sizes != self._sizes:  # it is looked at very often, and is read as it grows
            self._sizes, self._known = sizes, []
            for path in paths:
                whole, _, _ = path.read_bytes().rpartition(b"\n")
                self._known += full_lines(whole.splitlines())
        return [one for one in self._known if not events or one["ev"] in events]

    def pid_of(self, rank: int) -> int:
        """The process of `rank` that was started last."""
        return [int(r["pid"]) for r in self.records("worker.spawn") if r["rank"] == rank][-1]

    def canary(self, rank: int) -> list[list[float]]:
        """The reduced gradient of the canary in every step, as `rank` saw it."""
        seen: list[list[float]] = json.loads((self.out / f"canary{rank}.json").read_text())
        return seen

    def weights(self, rank: int) -> dict[str, torch.Tensor]:
        """The parameters (of its shard) that `rank` had at the end."""
        left = torch.load(self.out / f"weights{rank}.pt", weights_only=True)
        return {name.removeprefix("module."): tensor for name, tensor in left.items()}

    def finishers(self) -> list[int]:
        """The ranks that came to the end of the script."""
        return sorted(int(p.stem.removeprefix("canary")) for p in self.out.glob("canary*.json"))

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    # --------------------------------------------------------------------------- waiting

    def await_record(self, event: str, fits: Callable[[Record], bool] = lambda _: True) -> Record:
        """Wait until the journal has such a record."""
        looked: list[int] = []  # sizes of the journal's files then
        while True:
            over = self._over()  # before we look: what was written by then will be seen
            records = self.records(event)
            if self._sizes != looked:
                looked = self._sizes
                for record in records:
                    if fits(record):
                        return record
            assert not over, f"the run ended without {event}{self.story()}"
            if self._late():
                self._give_up(f"no {event} within {self.bound_s:.0f} s")

    def await_output(self, text: str, times: int) -> None:
        """Wait until somebody has printed `text` that often."""
        while self.output().count(text) < times:
            assert not self._over(), f"the run ended without {text!r}{self.story()}"
            if self._late():
                self._give_up(f"no {text!r} within {self.bound_s:.0f} s")

    def await_file(self, path: Path) -> None:
        """Wait until the script has written it, whole."""
        while not (path.exists() and path.read_bytes()):
            assert not self._over(), f"the run ended without {path.name}{self.story()}"
            if self._late():
                self._give_up(f"no {path.name} within {self.bound_s:.0f} s")

    def await_wait(self, pid: int, step: int) -> None:
        """Wait until this worker waits for others, in that step or later, as its page says."""
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        context = next(v for v in environ if v.startswith(b"RECOVERRUN_CONTEXT="))
        page = page_beside(context.partition(b"=")[2].decode())
        while (place := read_page(page)) is None or place.wait is None or place.step < step:
            assert not self._over(), f"the run ended before {pid} waited{self.story()}"
            if self._late():
                self._give_up(f"{pid} did not wait within {self.bound_s:.0f} s")

    def expire(self) -> None:
        """From now on this run counts as one that hangs."""
        self.bound_s = -1.0

    def _late(self) -> bool:
        """True if it has had its time, and so hangs."""
        return self._time.seconds() > self.bound_s

    def finish(self) -> int:
        """Wait for the end; the exit code."""
        while not self._over():
            if self._late():
                self._give_up(f"still running, with a bound of {self.bound_s:.0f} s")
        return self._process.wait()

    def tick(self) -> None:
        """Let a few milliseconds pass. Fails once the run has had its time."""
        self._over()
        if self._late():
            self._give_up(f"not over within {self.bound_s:.0f} s")

    def _over(self) -> bool:
        """True if the launcher has ended; waits a tick for it."""
        try:
            self._process.wait(timeout=TICK_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    # --------------------------------------------------------------------------- processes

    def processes(self) -> dict[int, str]:
        """Whatever runs and has our mark: pid -> command line."""
        return dict(marked(self._mark.encode()))

    def kill(self, rank: int) -> None:
        """SIGKILL from outside. A worker that is gone already is no error."""
        _send(self.pid_of(rank), signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to the launcher, as of a scheduler that wants the node back."""
        _send(self._process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Nothing of the run outlives the test, however that ended."""
        until = time.monotonic() + 30
        while living := self.processes():
            assert time.monotonic() < until, f"cannot be killed: {living}"
            for pid in living:
                _send(pid, signal.SIGKILL)
            self._over()
        self._process.wait(timeout=30)

    def _give_up(self, why: str) -> None:
        """Show where everybody hangs, then end the run and the test."""
        stacks = self._dump()
        self.end()
        raise AssertionError(f"{why}{self.story()}\n--- stacks\n{stacks}")

    def _dump(self) -> str:
        """The stacks of all threads of all processes, as Python and as the kernel see them."""
        living = self.processes()
        for pid in living:
            if (self._stacks / f"stacks.{pid}").exists():
                _send(pid, SHOW_STACKS)
        until = time.monotonic() + 10
        while time.monotonic() < until and not all(map(self._dumped, living)):
            self._over()
        return "\n".join(
            f"[{pid}] {command}\nin the kernel: {_waits(pid)}\n{self._stack(pid)}"
            for pid, command in living.items()
        )

    def _dumped(self, pid: int) -> bool:
        # faulthandler ends with the main thread, whose last frame is the module's. A child that was
        # merely forked has no file of its own.
        path = self._stacks / f"stacks.{pid}"
        return not path.exists() or "<module>" in self._stack(pid)

    def _stack(self, pid: int) -> str:
        path = self._stacks / f"stacks.{pid}"
        return path.read_text() if path.exists() else ""

    def story(self) -> str:
        """The text of a failed test: how to do it again, and what was printed and recorded."""
        lines = [f"{r['mono']:9.3f} {r['ev']}: {r['reason']}" for r in self.records()]
        return "\n".join(["", " ".join(self.command), self.output()[-3000:], *lines[-40:]])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It ended by itself.


def marked(mark: bytes) -> Iterator[tuple[int, str]]:
    """Whatever runs and has `mark` in the environment that it was started with."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0"):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(path.name), command.decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # It ended while we looked, or it is not ours.


def _waits(pid: int) -> str:
    """The wait of each thread in the kernel."""
    seen = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            seen.append(f"{(task / 'comm').read_text().strip()}={(task / 'wchan').read_text()}")
        except OSError:
            continue
    return " ".join(seen)


@contextmanager
def running(job: Job, folder: Path, **how: Any) -> Iterator[Run]:
    """A run that is over when the block is left, whatever happens in it."""
    run = Run(job, folder, **how)
    try:
        yield run
    finally:
        run.end()


def recoverrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of ours that reads a run which is over."""
    return subprocess.run(
        [sys.executable, "-m", "recoverrun", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
