"""`python -m tests.bench.exact`: what `--exact` costs in a step without losses.

Against recoverrun without it and against torchrun, in neighbouring turns (see `turns`): CPU time of
a step and rank, and wall time of a step, which has what the second operation cannot overlap, too.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from tests.bench import machine
from tests.bench.machine import Pair, median
from tests.bench.steady import MICROBATCHES, STEPS_A_TURN, WARM_UP_STEPS, Job
from tests.bench.turns import Runner

JOBS = (
    Job(strategy="ddp", ranks=2, parameters=1_000_000, batch=384),
    Job(strategy="ddp", ranks=2, parameters=10_000_000, batch=128),
    Job(strategy="hsdp", ranks=4, parameters=1_000_000, batch=384),
    Job(strategy="hsdp", ranks=4, parameters=10_000_000, batch=128),
)
AGAINST = ("recoverrun", "torchrun")


@dataclass(slots=True)
class Measured:
    """Milliseconds of a step with `--exact` and without."""

    cpu: list[Pair] = field(default_factory=list)  # of a rank
    wall: list[Pair] = field(default_factory=list)


def measure(job: Job, against: str, pairs: int) -> Measured:
    steps = WARM_UP_STEPS + pairs * STEPS_A_TURN
    arguments = [*job.arguments, f"--steps={steps}"]
    found = Measured()
    with ExitStack() as stack:
        runners = [
            stack.enter_context(Runner("recoverrun", job.ranks, arguments, options=("--exact",))),
            stack.enter_context(Runner(against, job.ranks, arguments)),
        ]
        for runner in runners:
            runner.meet()
            runner.go_on(WARM_UP_STEPS)
        for number in range(pairs):
            cpu, wall = [0.0, 0.0], [0.0, 0.0]
            for at in (0, 1) if number % 2 else (1, 0):
                began = time.monotonic()
                cpu[at] = runners[at].go_on(STEPS_A_TURN).ranks / job.ranks
                wall[at] = 1000 * (time.monotonic() - began) / STEPS_A_TURN
            found.cpu.append((cpu[0], cpu[1]))
            found.wall.append((wall[0], wall[1]))
        for runner in runners:
            runner.finish()
    print(".", end="", file=sys.stderr, flush=True)
    return found


def row(job: Job, against: str, measured: Measured) -> list[str]:
    cells = [job.name, against]
    for pairs in (measured.cpu, measured.wall):
        low, high = machine.interval(pairs)
        ours, theirs = (median([pair[at] for pair in pairs]) for at in (0, 1))
        cells += [f"{theirs:.1f}", f"{ours:.1f}", f"{machine.ratio(pairs):.3f}"]
        cells.append(f"{low:.3f}-{high:.3f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.exact")
    parser.add_argument("--pairs", type=int, default=20, help="of turns")
    parser.add_argument("--jobs", default="", help="parts of names, such as 'ddp' or '1M'")
    args = parser.parse_args()
    wanted = [job for job in JOBS if any(part in job.name for part in args.jobs.split(","))]
    machine.heading("exact", f"{MICROBATCHES} microbatches a step, AdamW, clipping, dropout")
    rows = [row(job, other, measure(job, other, args.pairs)) for job in wanted for other in AGAINST]
    print(file=sys.stderr)
    head = ["job", "against", "CPU", "--exact", "ratio", "95 %", "wall", "--exact", "ratio", "95 %"]
    machine.table(head, rows)
    print("ms of a step; CPU of one rank. Ratio: median of neighbouring turns, bootstrap interval.")


if __name__ == "__main__":
    main()
