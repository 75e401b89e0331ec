"""Two jobs at once, of which one works at a time: steps of both launchers next to each other.

The speed of a core in a shared machine changes from second to second by more than what is to be
measured. So both jobs live at the same time, every rank waits at a socket before each step, and
whoever has the turn may go on for a few steps.

The C library gives memory back to the kernel or keeps it, as chance has laid out the heap: the same
script under the same launcher faulted in nothing at every step, or up to 2,200 pages, which is some
milliseconds. Here it keeps what it has, under both.

What a step costs is of worth only with what it buys: a job of recoverrun's that promised less than
`exact-samples` is an error.
"""

import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from recoverrun.reports.postmortem import postmortem
from rendezvous.journal.reader import read_run
from tests.bench import jobs

WITHIN_S = 120.0
KEEPS = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}  # of glibc
CPU_S = struct.Struct("dd")


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU milliseconds of a step: all ranks together, of them the scripts' threads; launcher."""

    ranks: float
    scripts: float
    launcher: float


class Runner:
    """One job under one launcher, that goes on when it is told to. A context manager."""

    def __init__(
        self, launcher: str, ranks: int, arguments: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        self._resources = ExitStack()
        directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
        path = str(directory / "turns")
        self._listener = self._resources.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.settimeout(WITHIN_S)
        self._listener.bind(path)
        self._listener.listen(ranks)
        self._ranks = ranks
        self._connections: list[socket.socket] = []
        self._errors = directory / "errors"
        self._run_dir = directory / "run" if launcher == "recoverrun" else None
        if self._run_dir is not None:
            options = (*options, f"--run-dir={self._run_dir}")
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [*jobs.command(launcher, ranks, options, jobs.SCRIPTS / "steady.py"), *arguments],
                cwd=directory,
                env=jobs.environment(BENCH_TURNS=path, **KEEPS),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        jobs.end(self._process)
        if error is not None:
            print(self._errors.read_text(errors="replace")[-2000:])
        self._resources.close()

    def meet(self) -> None:
        """Wait until every rank is ready for its first step. Raises TimeoutError."""
        for _ in range(self._ranks):
            connection, _ = self._listener.accept()
            connection.settimeout(WITHIN_S)
            self._connections.append(self._resources.enter_context(connection))

    def go_on(self, steps: int) -> Spent:
        """Have all ranks do `steps` steps."""
        launcher_s = cpu_s(self._process.pid)
        for connection in self._connections:
            connection.sendall(b"." * steps)
        spent_s = thread_s = 0.0
        for connection in self._connections:
            for _ in range(steps):
                said = connection.recv(CPU_S.size, socket.MSG_WAITALL)
                if len(said) < CPU_S.size:
                    raise RuntimeError("a rank has ended early")
                process, thread = CPU_S.unpack(said)
                spent_s += process
                thread_s += thread
        launcher_s = cpu_s(self._process.pid) - launcher_s
        return Spent(*(1000 * all_s / steps for all_s in (spent_s, thread_s, launcher_s)))

    def finish(self) -> None:
        """Wait for the end. Raises RuntimeError if it is no good one, or less was promised."""
        if self._process.wait(WITHIN_S) != 0:
            raise RuntimeError(f"exit code {self._process.returncode}")
        if self._run_dir is None:
            return
        found = postmortem(read_run(self._run_dir))
        if found.promise != "exact-samples" or found.weakened:
            raise RuntimeError(f"{found.promise}: {found.weakened or found.promise_reason}")


def cpu_s(pid: int) -> float:
    """CPU seconds of any process so far: the clock id that the kernel makes of a pid."""
    return time.clock_gettime((~pid << 3) | 2)
