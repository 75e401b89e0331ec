"""Ranks that hang by themselves, in real processes: how, and where in a step.

Is the right rank named, are its stacks there before it is ended, how long do survivors stand still,
and are their weights those of a run without a hang?
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.e2e.jobs import HANGING, HANGING_HSDP, Job
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import Run, running

STEP = 6

LIMIT_S, MORE_S = 5.0, 2.0
"""In phases that every step passes, and what it may take beyond that."""

SHOWN_S = 1.0
"""Stacks are there so long after the limit."""

TOLERANCE = 1e-9

Weights = dict[int, dict[str, torch.Tensor]]
"""The final ones of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way to hang. `limit_s` is when it is due."""

    how: str
    where: str
    ranks: tuple[int, ...] = (1,)
    job: Job = HANGING
    options: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    limit_s: float = LIMIT_S
    slack_s: float = 0.0  # for stacks to be there, on a busy machine

    @property
    def name(self) -> str:
        who = "+".join(map(str, self.ranks))
        return f"{self.job.name.removeprefix('hanging-')} {self.how} in {self.where} of {who}"

    @property
    def arguments(self) -> tuple[str, ...]:
        ranks = ",".join(map(str, self.ranks))
        return ("--hang", f"{self.how}:{self.where}:{ranks}:{STEP}", *self.script)

    def strike(self, folder: Path, weights: Weights) -> float:
        """One run in `folder`; the seconds for which survivors stood still."""
        with running(self.job, folder, options=self.options, arguments=self.arguments) as run:
            return judge(self, run, weights)


WAYS = ("stop", "spin", "lock", "sleep", "keep")
EIGHT_S = ("--timeout", "8")
CELLS = (
    *(Cell(how=how, where=where) for how in WAYS for where in ("forward", "backward", "data")),
    *(Cell(how=how, where="forward", ranks=(0,)) for how in WAYS),
    *(Cell(how=how, where="alone", ranks=(0,), script=EIGHT_S, limit_s=7) for how in WAYS),
    *(Cell(how=how, where="forward", ranks=(1, 2)) for how in ("stop", "lock")),
    *(Cell(how=how, where="forward", job=HANGING_HSDP, ranks=(3,)) for how in WAYS),
    *(Cell(how=how, where="backward", job=HANGING_HSDP, ranks=(0,)) for how in ("stop", "lock")),
)


def reference(job: Job, folder: Path) -> Weights:
    """The final weights of a run in which nobody hangs, by rank."""
    with running(job, folder) as run:
        ended_well(run)
        return {rank: run.weights(rank) for rank in range(job.ranks)}


def judge(cell: Cell, run: Run, weights: Weights) -> float:
    """Survivors went on. Return for how many seconds they stood still."""
    ended_well(run)
    nothing_left(run)
    condemned = run.records("hang.condemn")
    began = {int(p.stem.removeprefix("hangs")): p for p in run.out.glob("hangs*.json")}
    marks = {rank: json.loads(path.read_text()) for rank, path in began.items()}
    pids = {r["pid"]: r["rank"] for r in run.records("worker.spawn")}
    marks_of = {pids[mark["pid"]]: mark["at"] for mark in marks.values()}
    hung = sorted(marks_of)
    assert sorted(r["rank"] for r in condemned) == hung, f"condemned {condemned}{run.story()}"
    ended = {record["rank"]: record["ts"] for record in run.records("worker.exit")}
    for record in condemned if cell.how != "stop" else ():
        stack = run.journal / "hangs" / str(record["hang"]) / f"rank{record['rank']}.stack"
        assert "visit" in stack.read_text(), f"no {stack}{run.story()}"
        shown, since = stack.stat().st_mtime, marks_of[record["rank"]]
        assert shown <= ended[record["rank"]], f"{stack} is late{run.story()}"
        took = shown - since - cell.limit_s
        assert took < SHOWN_S + cell.slack_s, f"{stack} took {took:.2f} s{run.story()}"
    lost = {mate for rank in hung for mate in cell.job.replica_of(rank)}
    assert run.finishers() == sorted(set(range(cell.job.ranks)) - lost), run.story()
    same_weights(run, weights)
    since = min(mark["at"] for mark in marks.values())
    waits = STEP + (cell.where == "alone")  # the step that others wait in
    committed = [r["ts"] for r in run.records("step.commit") if r["step"] >= waits]
    return min(committed) - since


def same_weights(run: Run, weights: Weights) -> None:
    """Of those who came to the end; up to rounding."""
    for rank in run.finishers():
        for name, value in run.weights(rank).items():
            apart = (value - weights[rank][name]).abs().max().item()
            assert apart <= TOLERANCE, f"rank {rank}, {name}: {apart} apart{run.story()}"
