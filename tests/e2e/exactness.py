"""`--exact` under random losses: `python -m tests.e2e.exactness` runs many, `make test` a few.

Every survivor's parameters and optimizer state must be, bit for bit, those that the same rank has
at the end of a run without losses. A schedule is a job and a seed, and can be run again by them.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.e2e.judge import ended_well, ledger, nothing_left
from tests.e2e.runs import Run, running
from tests.warm.launchers import LAUNCHERS

PHASES = ("forward", "backward", "reduce:0", "reduce", "reduce:99", "vote", "between", "redo")
STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactJob:
    """`ranks` workers of scripts/exact.py; `shards` of a replica with FSDP2, 0 with DDP."""

    name: str
    ranks: int
    shards: int = 0
    accumulation: int = 3
    more: tuple[str, ...] = ()
    script: str = "exact.py"
    steps: int = STEPS

    @property
    def replicas(self) -> int:
        return self.ranks // max(1, self.shards)

    @property
    def transactions(self) -> int:
        return self.steps

    @property
    def identities(self) -> list[tuple[int, int]]:
        return [(slot, i) for slot in range(self.replicas) for i in range(self.accumulation)]

    @property
    def arguments(self) -> tuple[str, ...]:
        numbers = f"--shards={self.shards} --accumulation={self.accumulation}"
        return (*numbers.split(), f"--steps={self.steps}", *self.more)

    def replica_of(self, rank: int) -> tuple[int, ...]:
        wide = max(1, self.shards)
        return tuple(range(rank - rank % wide, rank - rank % wide + wide))


DDP2 = ExactJob(name="ddp2", ranks=2)
DDP3 = ExactJob(name="ddp3", ranks=3)
DDP4 = ExactJob(name="ddp4", ranks=4)
WHOLE4 = ExactJob(name="ddp4-whole", ranks=4, more=("--bucket-mb=25",))
HSDP2 = ExactJob(name="hsdp2x2", ranks=4, shards=2)
HSDP3 = ExactJob(name="hsdp3x1", ranks=3, shards=1)
HSDP4 = ExactJob(name="hsdp4x1", ranks=4, shards=1, accumulation=2)
VIEWS3 = ExactJob(name="ddp3-views", ranks=3, more=("--variant=views",))
STATIC3 = ExactJob(name="ddp3-static", ranks=3, accumulation=1, more=("--variant=static",))
UNUSED4 = ExactJob(name="ddp4-unused", ranks=4, more=("--variant=unused",))
OFTEN2 = ExactJob(name="ddp2-often", ranks=2, steps=4, more=("--variant=often",))
HALF2 = ExactJob(name="hsdp2x2-half", ranks=4, shards=2, more=("--variant=half",))
DDP8 = ExactJob(name="ddp8", ranks=8, accumulation=2)
HSDP8 = ExactJob(name="hsdp4x2", ranks=8, shards=2, accumulation=2)
JOBS = {
    job.name: job
    for job in (
        DDP2, DDP3, DDP4, WHOLE4, HSDP2, HSDP3, HSDP4, VIEWS3, STATIC3, UNUSED4, HALF2, DDP8, HSDP8,
    )
}  # fmt: skip

State = dict[str, torch.Tensor]


def schedule(job: ExactJob, seed: int) -> str:
    """Losses of 1 to R - 1 replicas, in any phases of all steps but the first, or within one."""
    rng = random.Random(f"{job.name} {seed}")
    slots = rng.sample(range(job.replicas), rng.randint(1, job.replicas - 1))
    at = rng.randrange(1, job.steps)
    kills = []
    for slot in slots:
        ranks = job.replica_of(slot * max(1, job.shards))
        phases = PHASES if kills else PHASES[:-1]  # nothing is executed again before a loss
        kills.append(f"r{rng.choice(ranks)}@step:{at}:{rng.choice(phases)}")
        if rng.random() < 0.6:
            at = rng.randrange(at, job.steps)
    return ",".join(kills)


def states(run: Run) -> dict[int, State]:
    """The final state of each rank that came to the end."""
    found: dict[int, State] = {}
    for path in sorted(run.out.glob("weights*.pt")):
        found[int(path.stem.removeprefix("weights"))] = torch.load(path, weights_only=True)
    return found


def reference(job: ExactJob, *options: str) -> dict[int, State]:
    """The end of a run without losses."""
    with tempfile.TemporaryDirectory() as folder, running(
        job, Path(folder) / "run", options=options
    ) as run:  # fmt: skip
        ended_well(run)
        return states(run)


def differing(one: State, other: State) -> list[str]:
    """Names of tensors that differ in any bit."""
    assert one.keys() == other.keys() and any(name.endswith("/exp_avg_sq") for name in one)
    return [name for name in one if bits(one[name]) != bits(other[name])]


def bits(tensor: torch.Tensor) -> bytes:
    raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return bytes(raw)


def check(job: ExactJob, inject: str, expected: dict[int, State], folder: Path) -> int:
    """Run with these losses; the number of replicas that were lost. AssertionError if not equal."""
    with running(job, folder, inject=inject, options=("--exact",)) as run:
        ended_well(run)
        nothing_left(run)
        ledger(run)
        lost = {rank for record in run.records("replica.lost") for rank in record["ranks"]}
        left = states(run)

        assert sorted(left) == [r for r in range(job.ranks) if r not in lost], run.story()
        assert all(found["promise"] == "exact-samples" for found in run.records("promise.state"))
        assert not run.records("notice.give"), run.story()
        for rank, state in left.items():
            names = differing(state, expected[rank])
            assert not names, f"rank {rank}: other bits in {names}{run.story()}"
        return len(lost) // max(1, job.shards)


def _story(job: ExactJob, seed: int, known: Callable[[ExactJob], Any]) -> bool:
    inject = schedule(job, seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            lost = check(job, inject, known(job), Path(folder) / "run")
        except AssertionError as error:
            print(f"FAILED {job.name} seed {seed}: {inject}\n{error}", flush=True)
            return False
    took = time.monotonic() - begun
    print(f"{job.name} seed {seed}: {lost} lost, bitwise, {took:.0f} s  {inject}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.exactness")
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", default=",".join(JOBS))
    args = parser.parse_args()
    jobs = [JOBS[name] for name in args.jobs.split(",")]
    known = cache(lambda job: reference(job, "--exact"))

    numbers = range(args.seed, args.seed + args.schedules)
    with LAUNCHERS.forked():
        passed = [_story(jobs[n % len(jobs)], n, known) for n in numbers]
    print(f"{sum(passed)} of {len(passed)} schedules ended with the bits of a run without losses")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
