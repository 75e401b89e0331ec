"""A rank dies, and whoever redoes its microbatch hangs in it.

Python's own waits and loops are interrupted, and the microbatch is made up with fresh data. Who is
stopped or keeps Python's lock is lost. So is who ends it alone in a replica of several, where its
mates are in torch's communication. In all cases nobody tries that microbatch again.
"""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.hangs_alone import LIMIT_S, STEP, Weights
from tests.e2e.jobs import HANGING, HANGING_HSDP3, Job
from tests.e2e.judge import ended_well, nothing_left
from tests.e2e.runs import Run, running

VICTIM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`how` the redoer hangs; "stop": by a signal from outside; "fail": it raises an error instead.

    It is `lost` by a sentence of the launchers, or as it `leaves` its mates, or is not.
    """

    how: str
    lost: bool
    limit_s: float
    job: Job = HANGING
    leaves: bool = False

    @property
    def name(self) -> str:
        return f"{self.job.name.removeprefix('hanging-')} {self.how} while redoing"

    @property
    def arguments(self) -> tuple[str, ...]:
        how = "hold" if self.how == "stop" else self.how
        return ("--hang", f"die:forward:{VICTIM}:{STEP}", "--redo", how)

    def strike(self, folder: Path, weights: Weights) -> float:
        """One run in `folder`; the seconds for which survivors stood still."""
        del weights  # made up with fresh data, the step is another one
        bound_s = self.limit_s + 90
        with running(self.job, folder, arguments=self.arguments, bound_s=bound_s) as run:
            os.mkfifo(run.out / "go")
            pid, at = self._redoer(run)
            if self.how == "stop":
                os.kill(pid, signal.SIGSTOP)
            ended_well(run)
            nothing_left(run)
            return self._judged(run, pid, at)

    def _redoer(self, run: Run) -> tuple[int, float]:
        """Its process, and since when it hangs."""
        run.await_file(run.out / "redoes.json")
        mark = json.loads((run.out / "redoes.json").read_text())
        return mark["pid"], mark["at"]

    def _judged(self, run: Run, pid: int, at: float) -> float:
        redoer = next(r["rank"] for r in run.records("worker.spawn") if r["pid"] == pid)
        roots = [record["root_rank"] for record in run.records("replica.lost")]
        assert roots[0] == VICTIM, run.story()
        named = [record["rank"] for record in run.records("hang.condemn")]
        condemned = self.lost and not self.leaves
        assert named == ([redoer] if condemned else []), f"condemned {named}{run.story()}"
        assert (f"rank {redoer} leaves: " in run.output()) == self.leaves, run.story()
        lost = {mate for rank in roots for mate in self.job.replica_of(rank)}
        assert (redoer in lost) == self.lost, run.story()
        assert run.finishers() == sorted(set(range(self.job.ranks)) - lost), run.story()
        said = "died in it" if self.lost else "the script's code had not ended"
        assert "from here on equal-count: " in run.output() and said in run.output(), run.story()
        (commit,) = (r["ts"] for r in run.records("step.commit") if r["step"] == STEP)
        return float(commit) - at


CELLS = (
    Cell(how="stop", lost=True, limit_s=LIMIT_S),
    Cell(how="keep", lost=True, limit_s=60),
    *(Cell(how=how, lost=False, limit_s=30) for how in ("lock", "spin", "sleep")),
    Cell(how="stop", lost=True, limit_s=LIMIT_S, job=HANGING_HSDP3),
    Cell(how="fail", lost=True, limit_s=LIMIT_S, job=HANGING_HSDP3, leaves=True),
    *(
        Cell(how=how, lost=True, limit_s=30 + LIMIT_S, job=HANGING_HSDP3, leaves=True)
        for how in ("lock", "spin", "sleep")
    ),
)
