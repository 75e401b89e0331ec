"""Launchers as processes: started, read line by line, and gone when the test is over."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from rendezvous.journal.step_lines import full_lines
from tests.warm.launchers import LAUNCHERS, new_process

ROOT = Path(__file__).resolve().parents[2]
FAKE_WORKER = str(ROOT / "tests/e2e/fake_worker.py")
PATIENCE_S = 30.0


class Launch:
    """One launcher and everything that it and its workers print."""

    def __init__(
        self,
        arguments: list[str],
        run_dir: Path,
        env: dict[str, str],
        within: tuple[str, ...] = (),
        workers: int = 0,
    ) -> None:
        """`within` is a command that runs the launcher somewhere else, of so many `workers`."""
        command = [
            *within, sys.executable, "-m", "recoverrun", "--run-dir", str(run_dir), *arguments
        ]  # fmt: skip
        self.run_dir, self._workers = run_dir, workers
        self.output = ""
        self.killed = False
        self.private: Path | None = None
        """Its directory in shared memory, once it has been seen to hold one."""
        start = new_process if within else LAUNCHERS.start
        self._process = start(
            command,
            cwd=run_dir.parent,
            env={**os.environ, **_homes(run_dir.parent), "PYTHONPATH": str(ROOT), **env},
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until the output has `pattern`."""
        until = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.output)) is None:
            assert self._read(until), f"no {pattern!r} in:\n{self.output}"
        return found

    @property
    def fd(self) -> int:
        """The descriptor at which its output can be waited for."""
        assert self._process.stdout is not None, "started with a pipe"
        return self._process.stdout.fileno()

    def read(self) -> bool:
        """Take in what it has printed; False at its end."""
        return self._read(time.monotonic() + PATIENCE_S)

    def finish(self) -> int:
        """Wait for the end, as long as it has something to say; the exit code."""
        while self.read():
            pass
        return self._process.wait(timeout=PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self.killed = self.killed or number == signal.SIGKILL
        os.kill(self.pid, number)

    def records(self, *events: str) -> list[dict[str, Any]]:
        """The journal's records of these events, in the order of the files."""
        lines = [
            line
            for path in sorted(self.run_dir.glob("events.*.jsonl"))
            for line in full_lines(path.read_bytes().splitlines())
        ]
        return [line for line in lines if line["ev"] in events]

    def expect_record(self, event: str, words: str, times: int = 1) -> None:
        """Wait until the journal has so many of these whose reason has these words."""
        until = time.monotonic() + PATIENCE_S
        while sum(words in line["reason"] for line in self.records(event)) < times:
            assert time.monotonic() < until, f"no {event} of {words!r} in:\n{self.output}"
            time.sleep(0.05)  # A file that another process writes: there is nothing to wait on.

    def tree(self) -> list[int]:
        """The processes that it has started, and theirs."""
        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]

    def worker_pids(self) -> dict[int, int]:
        """Of each rank the newest; while it runs, as soon as the journal has all its workers."""
        if self._process.poll() is None:
            self.expect_record("worker.spawn", " starts", self._workers)
        return {line["rank"]: line["pid"] for line in self.records("worker.spawn")}

    def end(self) -> None:
        """For a test that failed half way: nothing of it may stay."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(timeout=10)
        assert self._process.stdout is not None, "started with a pipe"
        os.set_blocking(self._process.stdout.fileno(), False)
        self.output += (self._process.stdout.read() or b"").decode(errors="replace")
        self._process.stdout.close()

    def _read(self, until: float) -> bool:
        """True if there was more to read; False at the end of the output, too late fails."""
        assert self._process.stdout is not None, "started with a pipe"
        fd = self._process.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"nothing happened for {PATIENCE_S} s after:\n{self.output}"
        self.private = self.private or _held_by(self.pid)
        chunk = os.read(fd, 1 << 16)
        self.output += chunk.decode(errors="replace")
        return bool(chunk)


def _homes(directory: Path) -> dict[str, str]:
    """A key of the user who runs the tests is neither used nor made."""
    return {
        "XDG_CONFIG_HOME": str(directory / "config"),
        "XDG_STATE_HOME": str(directory / "state"),
    }


class Launcher:
    """Starts launchers in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._launches: list[Launch] = []
        self._reserved: list[socket.socket] = []

    def __call__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        within: tuple[str, ...] = (),
        workers: int = 0,
    ) -> Launch:
        """`recoverrun ARGUMENTS`."""
        run_dir = self._directory / f"run{len(self._launches)}"
        launch = Launch(list(arguments), run_dir, env or {}, within, workers)
        self._launches.append(launch)
        return launch

    def fake(
        self,
        *plans: str,
        nproc: int = 1,
        options: tuple[str, ...] = (),
        within: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Launch:
        """A job of fake workers, which do not come back unless `options` has --return."""
        first = (f"--nproc-per-node={nproc}", "--no-return")
        worker = ("--no-python", sys.executable, FAKE_WORKER)
        return self(*first, *options, *worker, *plans, within=within, env=env, workers=nproc)

    def port(self) -> int:
        """A port that nobody else is given for as long as this lives: many may look for one."""
        held = socket.socket()
        self._reserved.append(held)
        held.bind(("127.0.0.1", 0))
        # Only now: it shares the port with a listener that asks for it, not with who wants any.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return int(held.getsockname()[1])

    def left_behind(self) -> list[Path]:
        """Directories in shared memory that none of its launchers has removed."""
        held = [launch.private for launch in self._launches if launch.private]
        return [path for path in held if path.exists() and _is_unused(path)]

    def end(self) -> None:
        for held in self._reserved:
            held.close()
        for launch in self._launches:
            launch.end()
            print(f"--- {launch.run_dir.name}\n{launch.output}")  # Shown where a test fails.
        if any(launch.killed for launch in self._launches):
            # Nobody was left to tidy up: the next launcher does.
            assert self("--no-python", "true").finish() == 0


def first_with(launches: dict[int, Launch], pattern: str) -> int:
    """Wait until the output of one of them has `pattern`; its key. None of them may end."""
    await_outputs(
        launches, lambda: any(re.search(pattern, one.output) for one in launches.values())
    )
    return next(key for key, one in launches.items() if re.search(pattern, one.output))


def repeated(launches: dict[int, Launch], pattern: str, times: int) -> None:
    """Wait until they have printed `pattern` together so many times more."""

    def count() -> int:
        return sum(len(re.findall(pattern, one.output)) for one in launches.values())

    before = count()
    await_outputs(launches, lambda: count() >= before + times)


def await_outputs(launches: dict[int, Launch], over: Callable[[], bool]) -> None:
    """Read what they print until it is `over`."""
    until = time.monotonic() + PATIENCE_S
    by_fd = {launch.fd: launch for launch in launches.values()}
    while not over():
        ready, _, _ = select.select(list(by_fd), [], [], max(0.0, until - time.monotonic()))
        going_on = [by_fd[fd].read() for fd in ready]
        outputs = "\n".join(launch.output for launch in launches.values())
        assert ready and all(going_on), f"one has ended, or none says it any more:\n{outputs}"


@contextmanager
def launching(directory: Path) -> Iterator[Launcher]:
    """A launcher of launchers; at the end nothing of them is left, also not in shared memory."""
    launcher = Launcher(directory)
    try:
        yield launcher
    finally:
        launcher.end()
    left = launcher.left_behind()
    assert not left, f"left behind: {left}"


def _held_by(pid: int) -> Path | None:
    """The directory in shared memory that this launcher holds; others may launch meanwhile."""
    try:
        held = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return None  # it ends
    return next((path for path in held if str(path).startswith("/dev/shm/recoverrun-")), None)


def _is_unused(path: Path) -> bool:
    """True if no living launcher holds it."""
    import fcntl

    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def stranger(reply: bytes) -> Iterator[int]:
    """The port of a program that says the same to everybody, and hangs up."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            # Until the listener is shut down below.
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(1000)
                        connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def two_nodes(port: int) -> Callable[[int], tuple[str, ...]]:
    """Options of node 0 and of node 1 of one job."""
    return lambda rank: (
        "--nnodes=2",
        f"--node-rank={rank}",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
    )


def await_death(pid: int, within_s: float) -> float:
    """Wait for the end of any process; the seconds it took."""
    began = time.monotonic()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0.0
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(within_s * 1000), f"process {pid} still lives after {within_s} s"
    finally:
        os.close(pidfd)
    return time.monotonic() - began
