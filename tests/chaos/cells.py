"""Runs cells of the kill matrix of strategies, and judges them by what each run has left behind."""

import argparse
import importlib.util
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from recoverrun.errors import RecoverrunError
from recoverrun.fault_injection.trial import Trial
from recoverrun.reports.postmortem import postmortem
from rendezvous.journal.reader import read_run
from tests.chaos.strategies import ABSENT, KINDS, STRATEGIES, Cell, Strategy, cells
from tests.compat import trials
from tests.e2e.runs import marked

MARK = "STRATEGY_CELL_MARK"
STRUCK = "never struck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    problems: tuple[str, ...]
    apart: float  # max |Δw|


def reference(strategy: Strategy, folder: Path) -> Path:
    """The run without a loss, in `folder`. Raises AssertionError where it does not end well."""
    trial = trials.run(strategy.row, folder)
    assert trial.exit_code == 0, f"{strategy.name} without a loss: {trial.tail}"
    return folder


def strike(cell: Cell, plain: Path, folder: Path) -> Result:
    """Run `cell` in `folder`, and hold it against the run without a loss."""
    mark = uuid.uuid4().hex
    row = cell.strategy.row
    try:
        trial = trials.run(row, folder, cell.inject, environment={MARK: mark})
    except RecoverrunError as error:
        return Result(problems=(str(error), *_left(mark)), apart=float("inf"))
    outcome = trials.judge(row, plain, folder, cell.inject, trial)
    others = [one for one in outcome.problems if not one.startswith(STRUCK)]
    problems = (*others, *_left(mark), *_lost(cell, trial), *_blame(cell, trial))
    return Result(problems=problems, apart=outcome.apart)


def _left(mark: str) -> list[str]:
    """Processes that outlive their launcher."""
    return [f"left behind: {pid} {command}" for pid, command in marked(f"{MARK}={mark}".encode())]


def _wanted(cell: Cell) -> list[int]:
    """The replicas that must be lost."""
    absent = cell.strategy.absent if cell.kind == ABSENT else ()
    struck = {rank for rank, _, phase in cell.kills if phase not in absent}
    return sorted({cell.strategy.replica_of(rank) for rank in struck})


def _lost(cell: Cell, trial: Trial) -> list[str]:
    """Assert that each kill struck, where it has a moment at all, and took nobody else with it."""
    of = cell.strategy.replica_of
    deaths = trial.history.deaths
    lost = sorted({of(death.rank) for death in deaths if death.signal and not death.ours})
    if lost == _wanted(cell):
        return []
    kind = "an absent phase struck" if cell.kind == ABSENT else STRUCK
    return [f"{kind}: {cell.inject} took replicas {lost}"]


def _blame(cell: Cell, trial: Trial) -> list[str]:
    """The postmortem names one root for each lost replica, and it is one of the killed."""
    found = postmortem(read_run(trial.run_dir))
    roots = [loss.cause.root for loss in found.losses]
    named = sorted(cell.strategy.replica_of(root.rank) for root in roots)
    right = all(root.rank in cell.dead and root.cause == "sigkill" for root in roots)
    if named != _wanted(cell) or not right:
        return [f"postmortem names {[(root.rank, root.cause) for root in roots]}"]
    if roots and (found.root is None or found.root.rank not in cell.dead):
        return [f"postmortem's first cause is {found.root}"]
    return []


# ------------------------------------------------------------------------------- all of them


def main(only: str, kills: str) -> int:
    """Strategies with `only` in their names; of each all cells, or those of a kind or schedule."""
    print(f"{'strategy':<26} {'cells':>5} {'bad':>4} {'max |dw|':>9} {'minutes':>7}  of which")
    bad = 0
    for strategy in STRATEGIES:
        if only not in strategy.name:
            continue
        needs = strategy.row.needs
        if needs and importlib.util.find_spec(needs) is None:
            print(f"{strategy.name:<26} needs {needs}: not run (`make compat` installs it)")
            continue
        wanted = [cell for cell in cells(strategy) if kills in ("", cell.inject, cell.kind)]
        if wanted:
            bad += _all_of(strategy, wanted)
    return 1 if bad else 0


def _all_of(strategy: Strategy, wanted: list[Cell]) -> int:
    began = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="strategies-") as directory:
        plain = reference(strategy, Path(directory, "plain"))
        for number, cell in enumerate(wanted):
            results.append(strike(cell, plain, Path(directory, str(number))))
            if results[-1].problems:
                _tell(cell, results[-1])
    bad = sum(bool(result.problems) for result in results)
    apart = max(result.apart for result in results)
    kinds = Counter(cell.kind for cell in wanted)
    told = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind])
    minutes = (time.monotonic() - began) / 60
    row = f"{strategy.name:<26} {len(wanted):>5} {bad:>4} {apart:>9.0e} {minutes:>7.1f}  {told}"
    print(row, flush=True)
    return bad


def _tell(cell: Cell, result: Result) -> None:
    again = f"python -m tests.chaos --strategies --only '{cell.strategy.name}'"
    print(f"{cell.id} ({cell.kind}):", *result.problems, sep="\n  ", file=sys.stderr)
    print(f"  again: {again} --kills {cell.inject}", file=sys.stderr, flush=True)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strategies", action="store_true", help="kill ranks, in every strategy")
    parser.add_argument("--kills", default="", help="with --strategies: only this schedule or kind")
