"""Processes: the only file that starts, signals and reaps them.

A worker must never outlive its launcher, nor its own children outlive the worker. Each worker has a
session of its own, so that one signal reaches all that it started; PR_SET_PDEATHSIG has the kernel
kill it with the launcher; as a child subreaper the launcher inherits whatever escaped both; and
where the launcher itself is killed, the `guardian` finds the rest by the socket's name that every
descendant has in its environment. A pidfd becomes readable at the very moment a worker dies, and,
unlike a pid, never means another process.
"""

import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.descriptors import check_limits
from recoverrun.launcher.node.trackers import is_tracker, members
from rendezvous.protocol.exit_codes import ExitCode

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

SWEEP_S = 2.0
"""How long the end of a job may wait for inherited processes to go."""

TRACKERS_S = 5.0
"""The longest wait for trackers, which have something to remove."""

GUARD_ROUNDS, GUARD_PAUSE_S = 50, 0.02
"""How often and how fast the guardian looks for what a killed launcher left."""

_libc = ctypes.CDLL(None, use_errno=True)

_descriptors: tuple[int, int] | None = None  # the limits that workers inherit


class Child:
    """A worker process and the group that it leads."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the whole group; nothing happens if there is none any more.

        SIGKILL spares its trackers: they end as the others have ended, and clean up after them.
        """
        # Until it is reaped, even a dead leader keeps this number from being used again.
        if number == signal.SIGKILL and any(map(is_tracker, members(self.pid))):
            _kill_group(self.pid)
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def reap(self) -> int | None:
        """The exit code (negative: the signal) if it has ended, else None. Frees the pid.

        A worker that failed takes all of its group along; what one that ended well has left behind
        may go on until the job is over.
        """
        if self._process.returncode is None:
            gone = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if gone is None:
                return None
            if gone.si_code != os.CLD_EXITED or gone.si_status != 0:
                self.signal(signal.SIGKILL)
            self._process.wait()
        return self._process.returncode

    def close(self) -> None:
        """Give back the descriptor; the process is not touched."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def spawn(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdout: Path | None = None,
    stderr: Path | None = None,
    cpus: Collection[int] = (),
    handed: Collection[int] = (),
    outlives: bool = False,
) -> Child:
    """Start a worker in a session of its own, bound to the life of this process and to `cpus`.

    Its directory and its streams are ours, but for those that go to a file; of our descriptors it
    has those in `handed`. `outlives`: its life is its own. Raises RecoverrunError if it cannot be
    started.
    """
    launcher = os.getpid()
    limits = _descriptors

    def bind_life() -> None:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        if not outlives:
            _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if cpus:
            os.sched_setaffinity(0, cpus)
        if (
            not outlives and os.getppid() != launcher
        ):  # It died before the kernel knew that we care.
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with ExitStack() as files:
            out, err = (_opened(files, path) for path in (stdout, stderr))
            # Between fork and exec only `bind_life` runs in the child: system calls, no locks.
            process = subprocess.Popen(
                command,
                env=environ,
                start_new_session=True,
                preexec_fn=bind_life,
                stdout=out,
                stderr=err,
                pass_fds=tuple(handed),
            )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RecoverrunError(f"cannot start {command[0]!r}: {why}", ExitCode.USAGE) from error
    return Child(process)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends. For a child, before exec.

    Where the parent is gone by then, it is too late: nobody sends anything.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _opened(files: ExitStack, path: Path | None) -> IO[bytes] | None:
    """Open for appending: two processes that share a file must not overwrite each other."""
    return None if path is None else files.enter_context(path.open("ab", buffering=0))


def allow_connections(workers: int, nodes: int) -> tuple[str, ...]:
    """Let this process, but not its workers, open as many descriptors as the system allows.

    The usual limit of 1024 is for programs that poll with select; every launcher is a connection.
    Returns warnings about the limits, in a job of so many `nodes`. Raises RecoverrunError where
    they are too low for so many workers.
    """
    global _descriptors
    # A launcher that takes part anew has raised its own before.
    _descriptors = _descriptors or resource.getrlimit(resource.RLIMIT_NOFILE)
    warnings = check_limits(_descriptors, workers, nodes)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors[1], _descriptors[1]))
    return warnings


def open_standard_streams() -> None:
    """Have something behind 0, 1 and 2, so that no socket or journal of ours ever gets there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # The lowest that is free.


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = os.strerror(ctypes.get_errno())
        raise RecoverrunError(f"cannot become a subreaper: {error}", ExitCode.FAILED)


def reap_orphans(known: frozenset[int]) -> None:
    """Reap inherited processes that have ended, so that no zombie is left: all but `known`."""
    for pid in children() - known:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def sweep(keep: frozenset[int] = frozenset(), *, gently: bool = False) -> None:
    """End all children but `keep`, also inherited ones and what is inherited from those.

    `gently`: with SIGTERM first. Takes SWEEP_S at most, twice that if gentle. Where there are
    trackers, they have TRACKERS_S more to end by themselves.
    """
    for number in (signal.SIGTERM, signal.SIGKILL) if gently else (signal.SIGKILL,):
        until = time.monotonic() + SWEEP_S
        asked: set[int] = set()
        while (left := _swept(keep)) and time.monotonic() < until:
            for pid in left - asked:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            asked |= left
            for pid in left:
                _await_end(pid, until)
    until = time.monotonic() + TRACKERS_S
    for pid in children() - keep:
        _await_end(pid, until)
    for pid in children() - keep:
        _kill(pid)


def _swept(keep: frozenset[int]) -> set[int]:
    return {pid for pid in children() - keep if not is_tracker(pid)}


def _kill_group(group: int) -> None:
    """End all processes of a group but its trackers. One that is told to end forks no more."""
    seen: set[int] = set()
    while new := members(group) - seen:
        seen |= new
        for pid in new:
            if not is_tracker(pid):
                _kill(pid)


def _await_end(pid: int, until: float) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # A pidfd is readable once the process has ended; a zombie of ours is then reaped at once.
        _readable(pidfd, until - time.monotonic())
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # It was reaped as somebody's before us.
    finally:
        os.close(pidfd)


def _readable(fd: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(max(0, int(timeout_s * 1000)))


def children() -> frozenset[int]:
    """The pids of this process's children, the inherited ones among them."""
    me = os.getpid()
    try:
        text = Path(f"/proc/self/task/{me}/children").read_text()
    except OSError:
        return frozenset()  # Without this file of the kernel there is no telling who they are.
    return frozenset(int(pid) for pid in text.split())


class Guardian:
    """A small process that survives this one by a moment, and ends what a killed launcher leaves.

    It waits for the pipe that only the launcher holds to close. If the launcher did not say goodbye
    before, every process that has `mark` in its environment is killed, wherever it has gone, and
    the directory of `mark` removed.
    """

    def __init__(self, mark: str) -> None:
        reading, self._pipe = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(reading, mark)
            finally:
                os._exit(0)
        os.close(reading)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset({self._pid})

    def dismiss(self) -> None:
        """The launcher ends as it should."""
        with suppress(OSError):
            os.write(self._pipe, b"q")
        os.close(self._pipe)
        _await_end(self._pid, time.monotonic() + SWEEP_S)


def _guard(pipe: int, mark: str) -> None:
    os.setsid()
    for number in (*range(1, 32),):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    # Locks and sockets of the launcher must not live on with us.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, pipe):
            with suppress(OSError):
                os.close(int(name))
    if os.read(pipe, 1):
        return
    needle = mark.encode()
    for _ in range(GUARD_ROUNDS):
        # Again until there are none: one that is just being forked is seen the next time.
        if not [pid for pid in _marked(needle) if not is_tracker(pid) and _kill(pid)]:
            break
        time.sleep(GUARD_PAUSE_S)
    shutil.rmtree(os.path.dirname(mark), ignore_errors=True)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _marked(needle: bytes) -> Iterator[int]:
    """Processes of this user with `needle` in the environment they were started with."""
    me = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if needle in file.read():
                    yield int(name)
        except OSError:
            continue  # Gone, or somebody else's.
