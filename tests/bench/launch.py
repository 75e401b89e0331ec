"""`python -m tests.bench.launch`: from the command to the first line of user code."""

import argparse
import os
import re
import select
import subprocess
import tempfile
import time

from tests.bench import jobs, machine
from tests.bench.machine import median

WORKERS = (1, 2, 4, 8)
WITHIN_S = 60.0
LINE = re.compile(rb"first line at (\d+)")


def await_lines(process: "subprocess.Popen[bytes]", count: int) -> list[int]:
    """The CLOCK_MONOTONIC of the first line of `count` workers. Raises TimeoutError."""
    assert process.stdout is not None, "started with a pipe"
    fd, said = process.stdout.fileno(), b""
    until = time.monotonic() + WITHIN_S
    while len(found := LINE.findall(said)) < count or not said.endswith(b"\n"):
        readable, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        chunk = os.read(fd, 1 << 16) if readable else b""
        if not chunk:
            raise TimeoutError(f"{len(found)} of {count} workers: {said[-500:]!r}")
        said += chunk
    return [int(text) for text in found]


def launch_ms(launcher: str, nproc: int) -> tuple[float, float]:
    """Milliseconds from the start of the command to the first line of the first, the last rank."""
    with tempfile.TemporaryDirectory() as directory:
        began_ns = time.monotonic_ns()
        process = subprocess.Popen(
            jobs.command(launcher, nproc, (), jobs.SCRIPTS / "first_line.py"),
            cwd=directory,
            env=jobs.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            times_ns = await_lines(process, nproc)
            process.wait(WITHIN_S)
        finally:
            jobs.end(process)
    return (min(times_ns) - began_ns) / 1e6, (max(times_ns) - began_ns) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.launch")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    machine.heading("launch", "command to first line of a script without torch, ms")
    spans: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for turn in range(args.rounds + 1):
        for nproc in WORKERS:
            for launcher in jobs.LAUNCHERS:
                found = launch_ms(launcher, nproc)
                if turn:  # the first one warms the page cache
                    spans.setdefault((launcher, nproc), []).append(found)
    rows = []
    for nproc in WORKERS:
        ours, theirs = (spans[launcher, nproc] for launcher in jobs.LAUNCHERS)
        ratio = median([a[1] / b[1] for a, b in zip(ours, theirs, strict=True)])
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


if __name__ == "__main__":
    main()
