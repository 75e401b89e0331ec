"""Processes: the only file that starts, signals and reaps them.

A worker must never outlive its launcher, nor its own children outlive the worker. Three kernel
facilities see to that, none of them needs the launcher's cooperation at the moment of death: each
worker has a session of its own, so that one signal reaches all that it started; PR_SET_PDEATHSIG
has the kernel kill it with the launcher; and as a child subreaper the launcher inherits whatever
escaped both. A pidfd becomes readable at the very moment a worker dies, and, unlike a pid, never
means another process.
"""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recoverrun.errors import ExitCode, RecoverrunError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

SWEEP_S = 2.0
"""How long the end of a job may wait for inherited processes to go."""

_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A worker process and the group that it leads."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to the whole group; nothing happens if there is none any more."""
        with suppress(ProcessLookupError):
            # Until it is reaped, even a dead leader keeps this number from being used again.
            os.killpg(self.pid, number)

    def reap(self) -> int | None:
        """The exit code (negative: the signal) if it has ended, else None. Frees the pid.

        A worker that failed takes all of its group along; what one that ended well has left behind
        is its own business, as under torchrun.
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


def spawn(command: Sequence[str], environ: Mapping[str, str]) -> Child:
    """Start a worker in a session of its own, bound to the life of this process.

    Its streams and its directory are ours. Raises RecoverrunError if it cannot be started.
    """
    launcher = os.getpid()

    def bind_life() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != launcher:  # It died before the kernel knew that we care.
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        # Between fork and exec only `bind_life` runs in the child: two system calls, no locks.
        process = subprocess.Popen(
            command, env=environ, start_new_session=True, preexec_fn=bind_life
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RecoverrunError(f"cannot start {command[0]!r}: {why}", ExitCode.USAGE) from error
    return Child(process)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = os.strerror(ctypes.get_errno())
        raise RecoverrunError(f"cannot become a subreaper: {error}", ExitCode.FAILED)


def reap_orphans(workers: frozenset[int]) -> None:
    """Reap inherited processes that have ended, so that no zombie is left. `workers` are pids."""
    for pid in _children() - workers:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def sweep() -> None:
    """Kill all children, also inherited ones, and what is inherited from those, within SWEEP_S."""
    until = time.monotonic() + SWEEP_S
    while (children := _children()) and time.monotonic() < until:
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            _await_end(pid, until)


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


def _children() -> frozenset[int]:
    """The pids of this process's children, the inherited ones among them."""
    me = os.getpid()
    try:
        text = Path(f"/proc/self/task/{me}/children").read_text()
    except OSError:
        return frozenset()  # Without this file of the kernel there is no telling who they are.
    return frozenset(int(pid) for pid in text.split())
