"""`make bench`: what recoverrun costs while nothing happens, and what a loss costs in each phase.

Runs templates/gpt_hsdp.py with 2 replicas of 2 shards. Both launchers take turns, so
that a busy machine slows both; compare medians of one call, not of two machines.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recoverrun.commands.demo import QUIET, demo_script
from recoverrun.history import PARTS
from recoverrun.trial import Trial, launch
from rendezvous.schedule import PHASES

WORLD = 4
WARM_UP_STEPS = 5
LOSS_STEP = 8
SPEED = re.compile(r"step (\d+) .* (\d+) tok/s")


def speeds(lines: list[str]) -> list[float]:
    """Tokens per second of the steps after the first few, as the script itself measured them."""
    found = [match for line in lines if (match := SPEED.search(line))]
    return [float(match[2]) for match in found if int(match[1]) >= WARM_UP_STEPS]


def by_torchrun(steps: int) -> tuple[list[float], float]:
    """Return (speeds, wall seconds) of the script under torchrun."""
    began = time.monotonic()
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORLD}"]
    command += [str(demo_script()), "--steps", str(steps)]
    done = subprocess.run(
        command,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return speeds(done.stdout.splitlines()), time.monotonic() - began


def by_recoverrun(steps: int, inject: str = "") -> tuple[list[float], Trial]:
    """Return (speeds, trial) of the script under recoverrun."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        trial = launch(
            [f"--nproc-per-node={WORLD}", str(demo_script()), "--steps", str(steps)],
            run_dir=Path(directory),
            inject=inject,
            environment=QUIET,
            timeout_s=300,
            on_line=lines.append,
        )
    if trial.exit_code:
        raise SystemExit("\n".join(trial.tail))
    return speeds(lines), trial


def undisturbed(rounds: int, steps: int) -> None:
    """Print the speed under both launchers."""
    theirs: list[float] = []
    ours: list[float] = []
    walls: list[tuple[float, float]] = []
    for _ in range(rounds):
        found, wall_s = by_torchrun(steps)
        theirs += found
        found, trial = by_recoverrun(steps)
        ours += found
        walls.append((wall_s, trial.wall_s))
    one, two = statistics.median(theirs), statistics.median(ours)
    print(f"{'launcher':<12}{'median tok/s':>14}{'wall s':>10}")
    print(f"{'torchrun':<12}{one:>14.0f}{min(wall for wall, _ in walls):>10.1f}")
    print(f"{'recoverrun':<12}{two:>14.0f}{min(wall for _, wall in walls):>10.1f}")
    print(f"a step takes {100 * (one / two - 1):+.1f} % under recoverrun\n")


def losses() -> None:
    """Print the parts of a recovery for a kill in each phase."""
    names = [*PARTS, "total"]
    print(f"{'kill in':<12}" + "".join(f"{name + ' ms':>12}" for name in names) + f"{'redone':>8}")
    for phase in PHASES[:5]:
        _, trial = by_recoverrun(LOSS_STEP + 6, f"r3@step:{LOSS_STEP}:{phase}")
        for recovery in trial.history.recoveries:
            figures = [ms for _, ms in recovery.parts_ms] + [recovery.total_ms]
            row = "".join(f"{ms:>12.1f}" for ms in figures)
            print(f"{phase:<12}{row}{recovery.redone:>8}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    undisturbed(args.rounds, args.steps)
    losses()


if __name__ == "__main__":
    main()
