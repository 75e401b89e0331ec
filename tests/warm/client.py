"""The template as suites see it: `start` is `subprocess.Popen` for a launcher of ours."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ("-m", "recoverrun")
WITHIN_S = 60.0
ROOM_BYTES = 1 << 20
ROOM = " " * (1 << 15)
"""For what /proc is to show of a fork (`tests.warm.seen_by_system`)."""


class WarmProcess:
    """A launcher that is a fork: of `subprocess.Popen` what suites use, with a pipe or without."""

    def __init__(self, pid: int, ending: socket.socket, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ending = ending  # where the template says how it has ended

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("recoverrun", timeout or 0.0)
        return code

    def communicate(self, *, timeout: float | None = None) -> tuple[bytes, None]:
        """Read to the end. Raises TimeoutExpired, and leaves the thread that reads behind."""
        read: list[bytes] = []
        stdout = self.stdout
        assert stdout is not None, "started with a pipe"
        reader = threading.Thread(target=lambda: read.append(stdout.read()), daemon=True)
        reader.start()
        self.wait(timeout)
        reader.join(timeout)
        return b"".join(read), None

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._ending.settimeout(timeout)
            try:
                said = self._ending.recv(64)
            except (TimeoutError, BlockingIOError):
                return None
            self._ending.close()
            assert said, "the template has ended before what it has forked"
            self.returncode = int(said)
        return self.returncode


class Template:
    """A process that has imported what workers import, and forks launchers."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_BYTES)
        self._lock = threading.Lock()
        clean = {n: v for n, v in os.environ.items() if not n.startswith("RECOVERRUN_")}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tests.warm", str(theirs.fileno()), ROOM],
                cwd=ROOT,
                env={**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ROOM": ROOM},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | IO[bytes] = subprocess.PIPE,
        group: bool = False,
    ) -> WarmProcess:
        """Run `python -m recoverrun ...` as a fork; errors go where its output goes.

        `group`: it leads a process group of its own.
        """
        assert tuple(command[1:3]) == LAUNCHER, command
        reading = None
        with open(os.devnull, "rb") as null:
            writing = stdout if isinstance(stdout, int) else stdout.fileno()
            if stdout == subprocess.PIPE:
                reading, writing = os.pipe()
            ours, theirs = socket.socketpair()
            request = {
                "arguments": [*command[3:]],
                "environ": dict(env),
                "cwd": str(cwd or Path.cwd()),
                "group": group,
            }
            with theirs, self._lock:
                given = null.fileno() if stdin is None else stdin
                fds = [given, writing, theirs.fileno()]
                socket.send_fds(self._ours, [json.dumps(request).encode()], fds)
            if reading is not None:
                os.close(writing)
        pid = int(ours.recv(64))
        return WarmProcess(pid, ours, None if reading is None else open(reading, "rb", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """End it, and what it has forked with it."""
        self._ours.close()
        self._process.wait(timeout=WITHIN_S)
