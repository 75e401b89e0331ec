"""Scripts under plain torch: ranks are forked from one process that has torch loaded.

It reads requests from stdin, a line of JSON each, and answers with the exit codes. A rank gets what
a launcher's worker gets: the variables of its place, the script as the main module. That spares the
seconds in which a new process loads torch; no thread and no process group is in the one that forks.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy  # noqa: F401  # all are here for those who are forked
import torch
import torch._dynamo
import torch.distributed
import torch.distributed.fsdp
import torch.nn.parallel
import torch.utils.data

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
TOGETHER_S = 10.0
"""Ranks end with a barrier. With torch alone some never end, more of them on a busy machine: DDP's
reducer joins a thread of gloo, which waits for Python's global lock.
"""


class Plain:
    """The process that forks, as its user sees it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hunt.plain"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, folder: Path, world: int, *arguments: str) -> list[int]:
        """The ranks' exit codes; what they print is in `folder`, as `out.RANK`."""
        assert self._process.stdin is not None and self._process.stdout is not None, "pipes"
        request = {
            "script": str(script),
            "folder": str(folder),
            "world": world,
            "arguments": arguments,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.close()
        self._process.wait(timeout=WITHIN_S)


def _serve() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_ranks(request)), flush=True)


def _ranks(request: dict[str, Any]) -> list[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    pids = []
    for rank in range(request["world"]):
        if not (pid := os.fork()):
            _work(request, rank, port)
        pids.append(pid)
    return _codes(pids)


def _codes(pids: list[int]) -> list[int]:
    """Wait for all of them; one that is too late, or whose mate has failed, is ended."""
    codes: dict[int, int] = {}
    until, poll = time.monotonic() + WITHIN_S, select.poll()
    ends = {os.pidfd_open(pid): pid for pid in pids}
    for end in ends:
        poll.register(end, select.POLLIN)
    while ends:
        over = poll.poll(max(0.0, 1000 * (until - time.monotonic())))
        for end, _ in over:
            pid = ends.pop(end)
            poll.unregister(end)
            os.close(end)
            codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            until = min(until, time.monotonic() + TOGETHER_S)
        if not over or any(codes.values()):
            for pid in ends.values():
                os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + WITHIN_S  # they end at once
    return [codes[pid] for pid in pids]


def _work(request: dict[str, Any], rank: int, port: int) -> None:
    """Never returns."""
    code = 1
    try:
        said = os.open(
            os.path.join(request["folder"], f"out.{rank}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )
        for number in (1, 2):
            os.dup2(said, number)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["world"]),
            LOCAL_WORLD_SIZE=str(request["world"]), MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port), HUNT_FOLDER=request["folder"],
        )  # fmt: skip
        script = request["script"]
        sys.argv, sys.path[0] = [script, *request["arguments"]], os.path.dirname(script)
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:  # a script may end in any way; above is the loop of the one that forks
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
