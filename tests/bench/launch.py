"""`python -m tests.bench.launch`: from the command or a kill to the first line of user code.

The script imports no torch, which would take the same time under both launchers. What recoverrun
does in a worker before the script begins is in effect as for any user.
"""

import argparse
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.bench import jobs, machine
from tests.bench.machine import median

WORKERS = (1, 2, 4, 8)
RESTARTED = (2, 4)
WITHIN_S = 60.0
LINE = re.compile(rb"first line at (\d+)")
AGAIN = re.compile(rb"attempt (\d+) rank (\d+) pid (\d+) at (\d+)")

Span = tuple[float, float]
"""Milliseconds until the first rank, and until the last."""


class Output:
    """The output of a launcher and its workers, read as it comes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None, "started with a pipe"
        self._fd = process.stdout.fileno()
        self._said = b""

    def await_matches(self, pattern: re.Pattern[bytes], count: int) -> list[tuple[int, ...]]:
        """The numbers of `count` matches in whole lines. Raises TimeoutError."""
        until = time.monotonic() + WITHIN_S
        while True:
            whole = self._said[: self._said.rfind(b"\n") + 1]
            found = [tuple(map(int, match.groups())) for match in pattern.finditer(whole)]
            if len(found) >= count:
                return found
            readable, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._fd, 1 << 16) if readable else b""
            if not chunk:
                raise TimeoutError(f"{len(found)} of {count}: {self._said[-500:]!r}")
            self._said += chunk


def await_lines(process: "subprocess.Popen[bytes]", count: int) -> list[int]:
    """The CLOCK_MONOTONIC of the first line of `count` workers. Raises TimeoutError."""
    return [at for (at,) in Output(process).await_matches(LINE, count)]


@contextmanager
def _started(
    launcher: str, nproc: int, script: str, options: Sequence[str] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            jobs.command(launcher, nproc, options, jobs.SCRIPTS / script),
            cwd=directory,
            env=jobs.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
            process.wait(WITHIN_S)
        finally:
            jobs.end(process)


def launch_ms(launcher: str, nproc: int) -> Span:
    """From the start of the command."""
    began_ns = time.monotonic_ns()
    with _started(launcher, nproc, "first_line.py") as process:
        times_ns = await_lines(process, nproc)
    return (min(times_ns) - began_ns) / 1e6, (max(times_ns) - began_ns) / 1e6


def restart_ms(launcher: str, nproc: int) -> Span:
    """From SIGKILL of one rank to user code of the next attempt, in which all begin again."""
    with _started(launcher, nproc, "again.py", ["--max-restarts=1"]) as process:
        output = Output(process)
        before = output.await_matches(AGAIN, nproc)
        victim = next(pid for _, rank, pid, _ in before if rank == 1)
        killed_ns = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        lines = output.await_matches(AGAIN, 2 * nproc)
    times_ns = [at for attempt, _, _, at in lines if attempt == 1]
    return (min(times_ns) - killed_ns) / 1e6, (max(times_ns) - killed_ns) / 1e6


def compare(measure: Callable[[str, int], Span], counts: Sequence[int], rounds: int) -> None:
    """Alternate between the launchers, and print a table with a line for each count of workers."""
    spans: dict[tuple[str, int], list[Span]] = {}
    for turn in range(rounds + 1):
        for nproc in counts:
            for launcher in jobs.LAUNCHERS:
                found = measure(launcher, nproc)
                if turn:  # the first one warms the page cache
                    spans.setdefault((launcher, nproc), []).append(found)
    rows, faster = [], []
    for nproc in counts:
        ours, theirs = (spans[launcher, nproc] for launcher in jobs.LAUNCHERS)
        ratio = machine.ratio([(a[1], b[1]) for a, b in zip(ours, theirs, strict=True)])
        faster.append(median([a[1] for a in ours]) < median([b[1] for b in theirs]))
        rows.append(
            [
                str(nproc),
                *(f"{median([one[0] for one in side]):.0f}" for side in (ours, theirs)),
                *(machine.spread([one[1] for one in side], 0) for side in (ours, theirs)),
                f"{ratio:.2f}",
            ]
        )
    machine.table(
        ["workers", "first rank", "torchrun", "last rank, recoverrun", "torchrun", "ratio"], rows
    )
    machine.goal("median of the last rank below torchrun's, at each size", all(faster))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.launch")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    machine.heading("launch", "command to first line of a script without torch, ms")
    compare(launch_ms, WORKERS, args.rounds)
    machine.heading("restart", "SIGKILL of rank 1 to first line of all ranks' next attempt, ms")
    compare(restart_ms, RESTARTED, args.rounds)


if __name__ == "__main__":
    main()
