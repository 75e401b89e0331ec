"""Counts committed steps, so that a screen that follows a run for weeks need not keep them."""

from dataclasses import dataclass

from recoverrun.reports.commits import Commit
from recoverrun.reports.history import History
from recoverrun.reports.proof import step_fault


@dataclass(slots=True)
class StepTally:
    """Committed steps that were looked at."""

    steps: int = 0
    exact: int = 0
    moved: int = 0
    broken: str = ""  # the newest violation
    newest: tuple[int, int] = (-1, -1)  # attempt and step

    def count(self, commit: Commit, facts: History) -> None:
        fault, doubt = step_fault(commit, facts)
        self.steps += 1
        # Another journal may tell a moment later what a part leaves open: it is for the proof.
        self.exact += not fault and (commit.part or not doubt)
        self.moved += commit.moved
        self.broken = fault or self.broken
        self.newest = max(self.newest, (commit.attempt, commit.step))
