"""`python -m tests.bench.launcher`: what the launcher itself weighs, beside torchrun."""

import argparse
import fcntl
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import jobs, machine
from tests.bench.launch import await_lines
from tests.bench.machine import median

WORKERS = 4
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Of a launcher whose workers all run the script."""

    rss_mib: float
    own_mib: float  # that no other process shares
    threads: int
    torch: bool  # is its library mapped?


def help_s(launcher: str) -> float:
    """Seconds of wall time until `LAUNCHER --help` has ended."""
    began = time.monotonic()
    subprocess.run(
        [*jobs.program(launcher), "--help"],
        env=jobs.environment(),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    return time.monotonic() - began


def weight(launcher: str) -> Weight:
    """Workers wait for a lock while the launcher is looked at."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = jobs.command(launcher, WORKERS, (), jobs.SCRIPTS / "first_line.py")
        with open(directory / "errors", "wb") as errors, open(directory / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(
                [*command, lock.name],
                cwd=directory,
                env=jobs.environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            try:
                await_lines(process, WORKERS)
                seen = psutil.Process(process.pid)
                memory = seen.memory_full_info()
                mapped = Path(f"/proc/{process.pid}/maps").read_text()
                found = Weight(
                    rss_mib=memory.rss / MIB,
                    own_mib=memory.uss / MIB,
                    threads=seen.num_threads(),
                    torch="libtorch" in mapped,
                )
                fcntl.flock(lock, fcntl.LOCK_UN)
                process.wait(60)
            finally:
                jobs.end(process)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.launcher")
    parser.add_argument("--rounds", type=int, default=10, help="of --help")
    parser.add_argument("--weighings", type=int, default=3)
    args = parser.parse_args()
    machine.heading("launcher", f"RSS while {WORKERS} workers run a script without torch")
    walls: dict[str, list[float]] = {launcher: [] for launcher in jobs.LAUNCHERS}
    for turn in range(args.rounds + 1):
        for launcher in jobs.LAUNCHERS:
            wall_s = help_s(launcher)
            if turn:  # the first one warms the page cache
                walls[launcher].append(1000 * wall_s)
    weights: dict[str, list[Weight]] = {launcher: [] for launcher in jobs.LAUNCHERS}
    for _ in range(args.weighings):
        for launcher in jobs.LAUNCHERS:
            weights[launcher].append(weight(launcher))
    machine.table(
        ["launcher", "--help, ms", "RSS, MiB", "of its own", "threads", "torch in it"],
        [
            [
                launcher,
                machine.spread(walls[launcher], 0),
                f"{median([w.rss_mib for w in weighed]):.1f}",
                f"{median([w.own_mib for w in weighed]):.1f}",
                f"{median([w.threads for w in weighed]):.0f}",
                "yes" if any(w.torch for w in weighed) else "no",
            ]
            for launcher, weighed in weights.items()
        ],
    )
    machine.goal("no torch in our launcher", not any(w.torch for w in weights["recoverrun"]))


if __name__ == "__main__":
    main()
