"""Forks the workers of one launcher, beside it."""

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.environment import OUR_WORKER
from recoverrun.worker.boot import spare
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.spare_order import SpareOrder
from tests.warm.loaded import Loaded

Job = Callable[[], None]

LARGEST = 1 << 20
WITHIN_S = 30.0
READ_AT_THE_START = ("TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "OMP_", "MKL_", "KMP_")
"""Variables that torch and its libraries read as they are loaded: who has others starts cold."""

OF_EVERY_WORKER = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING"})
_PR_SET_PDEATHSIG = 1


def beside(python: Path, loaded: Loaded) -> Job | None:
    """Fork the process that forks workers. None in the launcher; in a worker, what it has to do."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = os.getpid()
    if not os.fork():
        ours.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != launcher:
            os._exit(0)
        return _serve(theirs, launcher, loaded)
    theirs.close()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
    _put_in_place(ours, python, _early(loaded.began_with))
    return None


def _early(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(READ_AT_THE_START) and name not in OF_EVERY_WORKER
    }


# ------------------------------------------------------------------------------- in the launcher


class _Popen:
    """Of `subprocess.Popen` what the launcher's `Child` asks of a process that it was given."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _put_in_place(line: socket.socket, python: Path, early: Mapping[str, str]) -> None:
    """Have the launcher start its workers over `line`."""
    from recoverrun.launcher.node import beginnings, process, spares

    cold: Any = process.spawn
    begins = (str(python), *OUR_WORKER)

    def spawn(
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdout: Path | None = None,
        stderr: Path | None = None,
        cpus: Collection[int] = (),
    ) -> process.Child:
        if tuple(command[:4]) != begins or _early(environ) != early:
            return cold(command, environ, stdout=stdout, stderr=stderr, cpus=cpus)
        reading, writing = os.pipe()
        order = {
            "environ": dict(environ),
            "arguments": command[4:],
            "stdout": spares.stream(stdout),
            "stderr": spares.stream(stderr),
            "cpus": sorted(cpus),
            "descriptors": process._descriptors,
        }
        try:
            for path in (stdout, stderr):
                if path is not None:
                    path.open("ab").close()
            socket.send_fds(line, [json.dumps(order).encode()], [writing])
        except OSError as error:
            raise RecoverrunError(f"cannot fork a worker: {error}", ExitCode.USAGE) from error
        finally:
            os.close(writing)
        with open(reading, "rb", 0) as told:
            pid = int(told.read() or 0)
        assert pid, "the process that forks workers has ended"
        return process.Child(_Popen(pid))  # type: ignore[arg-type]

    beginnings.spawn = spawn  # type: ignore[assignment]


# ------------------------------------------------------------------------------- beside it


def _serve(line: socket.socket, launcher: int, loaded: Loaded) -> Job:
    while True:
        data, fds, _, _ = socket.recv_fds(line, LARGEST, 1)
        if not data:
            os._exit(0)
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)  # Now the launcher inherits the worker, as it does all orphans.
            line.close()
            return _worker(json.loads(data), fds[0], launcher, loaded)
        os.close(fds[0])
        os.waitpid(between, 0)


def _worker(
    request: dict[str, Any],
    told: int,
    launcher: int,
    loaded: Loaded,
) -> Job:
    """In the worker: be what `spawn` of the launcher would have made of it."""
    os.setsid()
    until = time.monotonic() + WITHIN_S
    while os.getppid() != launcher:
        if time.monotonic() > until:
            os._exit(1)
        os.sched_yield()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != launcher:
        os._exit(1)
    if request["descriptors"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["descriptors"]))
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    order = SpareOrder(
        environ=request["environ"],
        arguments=tuple(request["arguments"]),
        stdout=request["stdout"],
        stderr=request["stderr"],
    )
    os.write(told, str(os.getpid()).encode())
    os.close(told)
    return lambda: _run(order, loaded)


def _run(order: SpareOrder, loaded: Loaded) -> None:
    from recoverrun.worker.boot import assembly, run_script, worker

    loaded.seen.show([sys.executable, *OUR_WORKER, *order.arguments], order.environ)
    streams = {number: os.dup(number) for number in (1, 2)}
    start = partial(worker.start, assemble=assembly.assemble)
    arguments, start_later = spare.become(order, streams, loaded.copies, start)
    os.environ.update(loaded.set_by_imports)
    _take_path(order.environ.get("PYTHONPATH", ""))
    numpy.random.seed()  # A new process draws its own from the system; `random` does in each fork.
    run_script.main(arguments, start=start_later, implied_path=None)


def _take_path(folders: str) -> None:
    """Look for modules where a new process would; its `sitecustomize` comes first of all.

    The template has one folder of PYTHONPATH, in front.
    """
    found = dict.fromkeys(map(os.path.abspath, filter(None, folders.split(os.pathsep))))
    sys.path[:1] = [one for one in found if one not in sys.path[1:]]
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
