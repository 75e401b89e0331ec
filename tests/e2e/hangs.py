"""`python -m tests.e2e.hangs --trials 30 [--only WORDS]`: ranks that hang, in real processes.

Each line is one way to hang: how often, how often not as it should, and how long it took until the
step was over, or the job.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.e2e import hangs_alone, hangs_redoing, hangs_together
from tests.e2e.hangs_alone import Weights, reference
from tests.e2e.jobs import HANGING, HANGING_HSDP, HANGING_HSDP3, Job


class Cell(Protocol):
    """One way to hang. `limit_s` is when it is due."""

    @property
    def name(self) -> str: ...
    @property
    def job(self) -> Job: ...
    @property
    def limit_s(self) -> float: ...

    def strike(self, folder: Path, weights: Weights) -> float:
        """One run; the seconds that it took. Raises AssertionError."""


CELLS: tuple[Cell, ...] = (*hangs_alone.CELLS, *hangs_redoing.CELLS, *hangs_together.CELLS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--only", default="", help="cells with these words in their names")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hangs-") as folder:
        return _table(options.trials, options.only, Path(folder))


def _table(trials: int, only: str, folder: Path) -> int:
    jobs = (HANGING, HANGING_HSDP, HANGING_HSDP3)
    weights = {job.name: reference(job, folder / job.name) for job in jobs}
    bad = 0
    print(f"{'hang':<52} {'trials':>6} {'bad':>4} {'p50 s':>7} {'max s':>7}")
    for cell in (cell for cell in CELLS if only in cell.name):
        took, wrong = [], 0
        for said in _trials(cell, trials, folder, weights[cell.job.name]):
            if isinstance(said, str):
                wrong += 1
                print(f"{cell.name}: {said}", file=sys.stderr)
            else:
                took.append(said)
        bad += wrong
        times = f"{statistics.median(took):>7.2f} {max(took):>7.2f}" if took else ""
        print(f"{cell.name:<52} {trials:>6} {wrong:>4} {times}", flush=True)
    return 1 if bad else 0


def _trials(cell: Cell, trials: int, folder: Path, weights: Weights) -> Iterator[float | str]:
    for number in range(trials):
        try:
            yield cell.strike(folder / f"{CELLS.index(cell)}.{number}", weights)
        except AssertionError as wrong:
            yield str(wrong)


if __name__ == "__main__":
    sys.exit(main())
