"""`python -m tests.bench.steady`: what a step without losses costs, in CPU time.

The same script runs under both launchers at once, a few steps of each in turn (see `turns`). CPU
time, not wall time: on a machine with fewer cores than ranks a step takes as long as all its ranks
compute. `--profile` shows where the time of our own code goes in one worker. `--control` measures
torchrun against itself: what is found there is this machine's chance, not ours.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import jobs, machine
from tests.bench.machine import median
from tests.bench.profiling import TORCH
from tests.bench.turns import Runner, Spent

WARM_UP_STEPS = 20
"""Not measured: proofs come at transactions 4, 8, 16, 32 and so on, from 512 on at each 512th. Each
forks, and then every page of memory that is written costs a fault once. Of the first 20 steps half
come after one; of those that are measured by default, two or three of 40.
"""

GOAL = 1.02
MICROBATCHES = 4
STEPS_A_TURN = 2
PROFILED_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    strategy: str
    ranks: int
    parameters: int
    batch: int  # rows of a microbatch
    accumulation: int = MICROBATCHES

    @property
    def name(self) -> str:
        sharded = self.strategy in ("hsdp", "fsdp1", "ddp-tp")
        shape = f"{self.ranks // 2}x2" if sharded else f"x{self.ranks}"
        return f"{self.strategy} {shape} {self.parameters // 1_000_000}M"

    @property
    def arguments(self) -> list[str]:
        return [
            f"--strategy={self.strategy}",
            f"--parameters={self.parameters}",
            f"--batch={self.batch}",
            f"--accumulation={self.accumulation}",
            f"--warm-up={WARM_UP_STEPS}",
        ]


JOBS = (
    Job(strategy="ddp", ranks=3, parameters=1_000_000, batch=384),
    Job(strategy="hsdp", ranks=4, parameters=1_000_000, batch=384),
    Job(strategy="ddp", ranks=3, parameters=10_000_000, batch=128),
    Job(strategy="hsdp", ranks=4, parameters=10_000_000, batch=128),
    Job(strategy="by-hand", ranks=3, parameters=1_000_000, batch=384),
    Job(strategy="ddp-unused", ranks=3, parameters=1_000_000, batch=384),
    # Without no_sync, which DDP forbids with static_graph, and which has recoverrun promise less
    # with replicate(): all of a step's rows in one microbatch.
    Job(strategy="replicate", ranks=3, parameters=1_000_000, batch=1536, accumulation=1),
    Job(strategy="ddp-static", ranks=3, parameters=1_000_000, batch=1536, accumulation=1),
    Job(strategy="ddp-tp", ranks=4, parameters=1_000_000, batch=384),
    Job(strategy="fsdp1", ranks=4, parameters=1_000_000, batch=384),
)


@dataclass(slots=True)
class Measured:
    """Neighbouring turns of recoverrun and torchrun in one job; a list for each launch."""

    launches: list[list[tuple[Spent, Spent]]] = field(default_factory=list)

    def pairs(self, part: str = "ranks") -> list[machine.Pair]:
        return [pair for launch in self.launches for pair in _pairs(launch, part)]


def _pairs(launch: Sequence[tuple[Spent, Spent]], part: str) -> list[machine.Pair]:
    return [(getattr(ours, part), getattr(theirs, part)) for ours, theirs in launch]


def measure(job: Job, pairs: int, measured: Measured, launcher: str) -> None:
    """Launch `launcher` and torchrun; in each pair of turns the one that was last goes first."""
    steps = WARM_UP_STEPS + pairs * STEPS_A_TURN
    arguments = [*job.arguments, f"--steps={steps}"]
    found: list[tuple[Spent, Spent]] = []
    sides = (launcher, "torchrun")
    with ExitStack() as runners:
        # Who is launched first takes turns as well: memory is given out in that order.
        order = (0, 1) if len(measured.launches) % 2 else (1, 0)
        begun = {
            side: runners.enter_context(Runner(sides[side], job.ranks, arguments)) for side in order
        }
        ours, theirs = begun[0], begun[1]
        for runner in (ours, theirs):
            runner.meet()
            runner.go_on(WARM_UP_STEPS)
        for number in range(pairs):
            pair = (ours, theirs) if number % 2 else (theirs, ours)
            spent = {id(runner): runner.go_on(STEPS_A_TURN) for runner in pair}
            found.append((spent[id(ours)], spent[id(theirs)]))
        for runner in (ours, theirs):
            runner.finish()
    measured.launches.append(found)
    print(".", end="", file=sys.stderr, flush=True)


def show(results: dict[Job, Measured], launcher: str) -> None:
    rows, ratios = [], []
    for job, measured in results.items():
        pairs = measured.pairs()
        ours, theirs = ([pair[at] / job.ranks for pair in pairs] for at in (0, 1))
        launchers = [median([pair[at] for pair in measured.pairs("launcher")]) for at in (0, 1)]
        ratios.append(machine.ratio(pairs))
        low, high = machine.interval(pairs)
        rows.append(
            [
                job.name,
                str(job.accumulation * job.batch),
                str(len(pairs)),
                *map(_middle, (theirs, ours)),
                f"{ratios[-1]:.4f}",
                f"{low:.4f}-{high:.4f}",
                " ".join(f"{machine.ratio(_pairs(one, 'ranks')):.3f}" for one in measured.launches),
                *(_more(measured.pairs(part), job) for part in ("ranks", "scripts")),
                *(f"{ms:.2f}" for ms in launchers),
            ]
        )
    machine.table(
        [
            "job",
            "rows",
            "n",
            "torchrun",
            launcher if launcher != "torchrun" else "another",
            "ratio",
            "95 %",
            "by launch",
            "more",
            "script",
            f"{launcher}'s",
            "torchrun's",
        ],
        rows,
    )
    print(f"ms of CPU of a step and rank: median [middle half] of n turns of {STEPS_A_TURN} steps.")
    print("rows: of one rank in a step, as tokens of a language model; ratio: median of the ratios")
    print("of neighbouring turns, with a bootstrap interval; more: their median difference;")
    print("script: the part of it in the script's own thread, the rest is in others of the rank;")
    print("the launchers' CPU for a step is not in the other figures.")
    if launcher != "torchrun":
        machine.goal(f"every ratio <= {GOAL}", max(ratios) <= GOAL)


def _middle(values: Sequence[float]) -> str:
    low, middle, high = machine.quartiles(values)
    return f"{middle:.1f} [{low:.1f}-{high:.1f}]"


def _more(pairs: Sequence[machine.Pair], job: Job) -> str:
    return f"{median([(ours - theirs) / job.ranks for ours, theirs in pairs]):+.2f}"


def block(launcher: str, job: Job) -> dict[str, Any]:
    """The output of rank 0 with its profile on."""
    arguments = [*job.arguments, f"--steps={WARM_UP_STEPS + PROFILED_STEPS}"]
    with tempfile.TemporaryDirectory() as directory:
        ran = jobs.run(
            launcher,
            job.ranks,
            "steady.py",
            arguments,
            directory=Path(directory),
            BENCH_PROFILE="1",
        )
    lines = [line for line in jobs.must(ran).output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def show_profile(job: Job) -> None:
    told = {launcher: block(launcher, job) for launcher in jobs.LAUNCHERS}
    functions = told["recoverrun"]["profile"]
    step_ms = 1000 * median(told["recoverrun"]["cpu_s"][WARM_UP_STEPS:])
    print(f"-- {job.name}: {step_ms:.1f} ms a step and rank")
    rows = [
        [name, f"{calls:.1f}", f"{own:.3f}", f"{whole:.3f}", f"{100 * own / step_ms:.2f}"]
        for name, calls, own, whole in functions
        if own >= 0.005
    ]
    total = sum(own for name, _, own, _ in functions if not name.startswith(TORCH))
    rows.append(["all of ours", "", f"{total:.3f}", "", f"{100 * total / step_ms:.2f}"])
    machine.table(["rank 0, ms a step", "calls", "own", "with callees", "% of step"], rows)
    threads = [told[launcher]["threads"] for launcher in jobs.LAUNCHERS]
    machine.table(
        ["threads, ms a step", *jobs.LAUNCHERS],
        [
            [name, *(f"{side.get(name, 0.0):.2f}" for side in threads)]
            for name in sorted({name for side in threads for name in side})
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.steady")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=20, help="of turns, in each launch")
    parser.add_argument("--jobs", default="", help="parts of names, such as 'ddp' or '1M'")
    parser.add_argument("--control", action="store_true", help="torchrun against itself")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    wanted = [job for job in JOBS if any(part in job.name for part in args.jobs.split(","))]
    if not wanted:
        parser.error(f"--jobs: none of {', '.join(job.name for job in JOBS)} has {args.jobs!r}")
    machine.heading("steady", f"{MICROBATCHES} microbatches a step or 1, AdamW, clipping, dropout")
    if args.profile:
        for job in wanted:
            show_profile(job)
        return
    launcher = "torchrun" if args.control else "recoverrun"
    results = {job: Measured() for job in wanted}
    for _ in range(args.launches):
        for job in wanted:
            measure(job, args.pairs, results[job], launcher)
    print(file=sys.stderr)
    show(results, launcher)


if __name__ == "__main__":
    main()
