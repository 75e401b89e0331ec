"""Both launchers behind one handle, and the check that nothing of a case outlives its launcher."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
PROBE = str(SCRIPTS / "probe.py")

PATIENCE_S = 60.0
GONE_S = 1.5
"""How long after the end of a killed launcher its guardian may take."""

MARK = "PARITY_MARK"

# What the environment of the tests themselves must not decide.
DROPPED = ("PET_", "RECOVERRUN_", "TORCHELASTIC_", "SLURM_", "OMPI_", "LWS_", "VC_")
NAMES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE",
         "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX")  # fmt: skip


def clean_environ(more: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(DROPPED) and name not in NAMES
    }
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT), str(SCRIPTS))), **more}


class Torchrun:
    """The server of forks; one for all tests."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.parity.torchrun_server"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._buffer = b""
        self.codes: dict[int, int] = {}
        self._answer(time.monotonic() + PATIENCE_S)

    def start(self, request: dict[str, object]) -> int:
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._answer(until)
            if "code" in answer:
                self.codes[answer["pid"]] = answer["code"]
            else:
                return int(answer["pid"])

    def wait(self, pid: int, until: float) -> int:
        while pid not in self.codes:
            answer = self._answer(until)
            self.codes[answer["pid"]] = answer["code"]
        return self.codes[pid]

    def close(self) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.close()
        self._process.wait(timeout=10)

    def _answer(self, until: float) -> dict[str, Any]:
        assert self._process.stdout is not None, "started with a pipe"
        while b"\n" not in self._buffer:
            wait_s = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], wait_s)
            assert ready, "torchrun did not end in time"
            data = os.read(self._process.stdout.fileno(), 65536)
            assert data, "the server of torchrun has ended"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


@dataclass
class Job:
    """One launcher of either kind."""

    pid: int
    ours: bool
    mark: str
    folder: Path
    server: Torchrun
    process: "subprocess.Popen[bytes] | None" = None
    killed: bool = False
    code: int = -999
    left: list[int] = field(default_factory=list)

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.killed = self.killed or number == signal.SIGKILL
        os.kill(self.pid, number)

    def expect(self, count: int, word: str = "PROBE", within_s: float = PATIENCE_S) -> None:
        """Wait until `word` was printed `count` times."""
        until = time.monotonic() + within_s
        while self.count(word) < count:
            assert time.monotonic() < until, f"no {count} {word} in {self.out}\n{self.err}"
            time.sleep(0.02)

    def expect_error(self, words: str) -> None:
        """Wait until the launcher has said `words`."""
        until = time.monotonic() + PATIENCE_S
        while words not in self.err:
            assert time.monotonic() < until, f"no {words!r} in {self.err}"
            time.sleep(0.02)

    def count(self, word: str) -> int:
        """Lines that begin with `word`; a probe's own line has all of its instructions in it."""
        return sum(line.startswith(word) for line in self.out.splitlines())

    def finish(self) -> int:
        until = time.monotonic() + PATIENCE_S
        if self.process is not None:
            self.code = self.process.wait(timeout=PATIENCE_S)
        else:
            self.code = self.server.wait(self.pid, until)
        self._end()
        return self.code

    def _end(self) -> None:
        left = survivors(self.mark)
        until = time.monotonic() + (GONE_S if self.killed or not self.ours else 0.3)
        while left and time.monotonic() < until:
            time.sleep(0.02)
            left = survivors(self.mark)
        self.left = left
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not (self.ours and left), f"outlived its launcher: {left}\n{self.err}"

    def abandon(self) -> None:
        """For a test that failed half way."""
        if self.code == -999:
            for pid in survivors(self.mark):
                os.kill(pid, signal.SIGKILL)

    @property
    def probes(self) -> list[dict[str, Any]]:
        """The statements of the workers, by restart and rank."""
        found = [
            json.loads(line.partition("PROBE ")[2])
            for line in self.out.splitlines()
            if "PROBE " in line
        ]
        return sorted(found, key=lambda probe: (probe["restart"], probe["rank"]))


def survivors(mark: str) -> list[int]:
    """Living processes that were started with this mark in their environment."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            environ = Path("/proc", name, "environ").read_bytes()
            state = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if needle in environ and state != "Z":
            found.append(int(name))
    return found


class Driver:
    """Starts launchers in one folder."""

    def __init__(self, folder: Path, server: Torchrun) -> None:
        self.folder = folder
        self._server = server
        self._jobs: list[Job] = []

    def start(self, ours: bool, *argv: str, **environ: str) -> Job:
        mark = uuid.uuid4().hex
        folder = self.folder / f"{'ours' if ours else 'theirs'}{len(self._jobs)}"
        folder.mkdir()
        homes = {f"XDG_{name}_HOME": str(self.folder) for name in ("CONFIG", "STATE")}
        full = clean_environ({MARK: mark, "TMPDIR": str(folder), **homes, **environ})
        streams = {name: str(folder / name) for name in ("stdout", "stderr")}
        if ours:
            with open(streams["stdout"], "ab") as out, open(streams["stderr"], "ab") as err:
                process = subprocess.Popen(
                    [sys.executable, "-m", "recoverrun", *argv],
                    cwd=folder, env=full, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                )  # fmt: skip
            job = Job(process.pid, True, mark, folder, self._server, process)
        else:
            request = {"argv": list(argv), "environ": full, "cwd": str(folder), **streams}
            for path in streams.values():
                Path(path).touch()
            job = Job(self._server.start(request), False, mark, folder, self._server)
        self._jobs.append(job)
        return job

    def run(self, ours: bool, *argv: str, **environ: str) -> Job:
        job = self.start(ours, *argv, **environ)
        job.finish()
        return job

    def both(self, *argv: str, **environ: str) -> tuple[Job, Job]:
        """(torchrun, recoverrun), at the same time."""
        theirs = self.start(False, *argv, **environ)
        ours = self.start(True, *argv, **environ)
        ours.finish()
        theirs.finish()
        return theirs, ours

    def end(self) -> None:
        for job in self._jobs:
            job.abandon()
            print(f"--- {job.folder.name}: {job.code}\n{job.out}\n{job.err}")
