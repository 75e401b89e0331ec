"""Runs in which a lost replica comes back: the weights are those of a run without a loss."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import Run, running

Weights = dict[int, dict[str, torch.Tensor]]

WITHIN_S = 280.0
"""A fresh process imports torch, on a machine that is busy."""

STEPS = 240
"""Of 0.8 s each until it is back, and then of some milliseconds."""

PROVED = 3
"""So many steps after its return a replica has proved that it can make up others' data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """`ranks` workers of scripts/returning.py; `shards` of a replica, 0 if it is one rank."""

    shape: str
    ranks: int = 2
    wrap: str = ""  # as the script names it
    shards: int = 0
    exact: bool = True  # where it is not, two replicas add up in any order alike
    kills: str = "r1@step:6:backward"
    dies: str = ""  # where the first process that comes back ends
    faulty: tuple[str, ...] = ()  # options of the script: what a machine does to one rank
    checks: tuple[str, ...] = ()  # options that notice it
    comes: int = 1  # how many returns are awaited
    then: tuple[int, ...] = ()  # ranks that are killed, each once the one before is back
    script: str = "returning.py"

    @property
    def name(self) -> str:
        checks = "-".join(one.strip("-").partition("=")[0] for one in self.checks)
        size = f"{self.ranks}x{max(1, self.shards)}"
        parts = (self.shape, self.wrap, size, self.dies, checks)
        return "-".join(filter(None, parts))

    @property
    def arguments(self) -> tuple[str, ...]:
        wrap = (f"--wrap={self.wrap}",) if self.wrap else ()
        return (f"--shape={self.shape}", f"--steps={STEPS}", f"--shards={self.shards}", *wrap)

    @property
    def options(self) -> tuple[str, ...]:
        return (*(("--exact",) if self.exact else ()), *self.checks)


def weights_of(run: Run) -> Weights:
    return {rank: run.weights(rank) for rank in range(run.job.ranks)}


def undisturbed(job: Any, folder: Path) -> Weights:
    """The weights of all ranks where nobody is lost."""
    with running(job, folder, options=job.options, bound_s=WITHIN_S) as run:
        (run.out / "go").touch()
        ended_well(run)
        return weights_of(run)


def await_return(run: Run, number: int) -> int:
    """Wait for the return of this number, and give its step."""
    run.await_record("replica.return", lambda _: len(run.records("replica.return")) >= number)
    return int(run.records("replica.return")[number - 1]["step"])


def await_step(run: Run, step: int) -> None:
    run.await_record("step.commit", lambda one: one["step"] >= step)


def returned(job: Any, folder: Path) -> tuple[Weights, list[dict[str, Any]]]:
    """The weights where replicas were lost and came back, and the records of the returns."""
    more = (*((f"--dies={job.dies}",) if job.dies else ()), *job.faulty)
    options = (*job.options, "--return")
    with running(
        job, folder, inject=job.kills, options=options, arguments=more, bound_s=WITHIN_S
    ) as run:
        for came, rank in enumerate(job.then, 1):
            await_step(run, await_return(run, came) + PROVED)
            run.kill(rank)
        await_return(run, job.comes)
        (run.out / "go").touch()
        ended_well(run)
        nothing_left(run)
        return weights_of(run), run.records("replica.return")
