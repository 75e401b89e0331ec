"""Runs that go back to a snapshot: the weights are those of a run without a loss."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import Run, running

Weights = dict[int, dict[str, torch.Tensor]]

WITHIN_S = 280.0
"""All processes import torch once for each loss, on a machine that is busy."""

STEPS, EVERY = 24, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingBack:
    """`ranks` workers of a script beside; `dies` as that takes it."""

    shape: str
    layout: str = "single"
    ranks: int = 1
    dies: str = "0@13"
    inject: str = ""
    every: str = str(EVERY)
    needs: str = ""  # a framework that trains
    steps: int = STEPS

    @property
    def script(self) -> str:
        return "going_back_in_frameworks.py" if self.needs else "going_back.py"

    @property
    def name(self) -> str:
        died = (self.dies or self.inject).replace("@", "-at-").replace(":", "-")
        pace = "-auto" if self.every == "auto" else ""
        return f"{self.layout}-{self.shape}-{died}{pace}".replace(",", "-then-")

    @property
    def arguments(self) -> tuple[str, ...]:
        return (f"--shape={self.shape}", f"--layout={self.layout}", f"--steps={self.steps}")

    @property
    def losses(self) -> int:
        """The number of times that all ranks begin anew."""
        return len(self.dies.split(",")) if self.dies else 1


def weights_of(run: Run) -> Weights:
    return {rank: run.weights(rank) for rank in range(run.job.ranks)}


def undisturbed(job: Any, folder: Path) -> Weights:
    """The weights of all ranks where nobody is lost, and no snapshot taken."""
    with running(job, folder, bound_s=WITHIN_S) as run:
        ended_well(run)
        return weights_of(run)


def gone_back(job: GoingBack, folder: Path) -> tuple[Weights, list[int]]:
    """The weights where ranks died, and the steps that all have gone back to."""
    options = (f"--snapshot-every={job.every}",)
    with running(
        job,
        folder,
        inject=job.inject,
        options=options,
        arguments=(f"--dies={job.dies}",),
        bound_s=WITHIN_S,
    ) as run:
        ended_well(run)
        nothing_left(run)
        restored = run.records("snapshot.restored")
        return weights_of(run), [int(record["step"]) for record in restored]
