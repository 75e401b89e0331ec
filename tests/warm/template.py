"""The process that has torch loaded: it forks launchers, and tells how they end.

Nothing here returns in the usual sense: `serve` comes back in each process that was forked, with
what that process has to do.
"""

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.warm.loaded import Loaded, load

Job = Callable[[], None]

LARGEST = 1 << 20
DESCRIPTORS = 3
_PR_SET_PDEATHSIG = 1


class _Forked:
    """A launcher as the template knows it."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid, self.line = pid, line
        self.pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self.pidfd)
        self.line.close()


def serve(fd: int) -> Job:
    """Fork a launcher for each request that comes over the socket `fd`, until it closes."""
    asked = socket.socket(fileno=fd)
    loaded = load()
    assert len(os.listdir("/proc/self/task")) == 1, "a thread is not there in a fork"
    gc.collect()
    gc.freeze()  # Else the first collection in each fork copies all of this memory.
    forked: list[_Forked] = []
    poll = select.poll()
    poll.register(asked, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        for one in [one for one in forked if one.pidfd in ready]:
            forked.remove(one)
            poll.unregister(one.pidfd)
            _tell_end(one)
        if asked.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(asked, LARGEST, DESCRIPTORS)
            if not data:
                return lambda: _end(forked)
            request = json.loads(data)
            pid = os.fork()
            if not pid:
                for held in (asked, *forked):
                    held.close()
                return _launcher(request, fds, loaded)
            line = socket.socket(fileno=fds.pop())
            for given in fds:
                os.close(given)
            line.send(str(pid).encode())
            one = _Forked(pid, line)
            forked.append(one)
            poll.register(one.pidfd, select.POLLIN)


def _tell_end(one: _Forked) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
    try:
        one.line.send(str(code).encode())
    except OSError:
        pass  # Nobody waits for it any more.
    one.close()


def _end(forked: list[_Forked]) -> None:
    for one in forked:
        os.kill(one.pid, signal.SIGTERM)
    for one in forked:
        _tell_end(one)


def _launcher(request: dict[str, Any], fds: list[int], loaded: Loaded) -> Job:
    """In the fork: become the launcher, with a process that forks its workers beside it."""
    from tests.warm import workers

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if request["group"]:
        os.setpgid(0, 0)
    stdin, output, ending = fds
    for number, source in enumerate((stdin, output, output)):
        os.dup2(source, number)
    for fd in (stdin, output, ending):
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    arguments = ["recoverrun", *request["arguments"]]
    loaded.seen.show([sys.executable, "-m", *arguments], request["environ"])
    sys.argv[:] = arguments
    job = workers.beside(Path(sys.executable), loaded)
    return job if job is not None else _run


def _run() -> None:
    from recoverrun.cli.main import main

    main()
