"""Runs a row with and without kills and tells what came of it."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recoverrun.fault_injection.trial import Trial, launch
from recoverrun.fault_injection.verdict import faults
from recoverrun.reports.history import History
from recoverrun.worker.tools import compare_weights
from rendezvous.protocol.fault_schedule import parse
from tests.compat.row import Row
from tests.warm.launchers import LAUNCHERS

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 100.0

ALONE = ("--no-return",)
"""A look at the things that survivors do by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run with kills beside the one without."""

    row: Row
    inject: str
    trial: Trial
    apart: float  # max |Δw| of the survivors' final parameters
    problems: tuple[str, ...]


def run(
    row: Row,
    folder: Path,
    inject: str = "",
    environment: Mapping[str, str] | None = None,
    *,
    options: Sequence[str] = (),
    path: Sequence[Path] = (),
    within_s: float = WITHIN_S,
) -> Trial:
    """Run the script of `row`; its journal and witness are in `folder`. Python looks for modules in
    `path` first. Whoever is lost comes back only with --return among the `options`.
    """
    witness = folder / "witness"
    witness.mkdir(parents=True)
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    found = os.pathsep.join([*map(str, path), str(ROOT), *inherited])
    return launch(
        (*(ALONE if inject else ()), *options, *row.command),
        run_dir=folder / "run",
        inject=inject,
        witness=witness,
        timeout_s=within_s,
        environment={"OMP_NUM_THREADS": "1", "PYTHONPATH": found, **(environment or {})},
        start=LAUNCHERS.starter,
    )


def judge(row: Row, reference: Path, folder: Path, inject: str, trial: Trial) -> Outcome:
    """Hold a run with kills against the one without, whose files are in `reference`."""
    apart = float("inf")
    problems = [*_ended(trial), *_promised(row, trial), *_struck(inject, trial.history)]
    if trial.exit_code == 0:
        rows = compare_weights.differences(reference / "witness", folder / "witness", None)
        found = [float(str(one["max_abs_diff"])) for one in rows]
        apart = max(found)
    uncounted = row.goes_back and trial.proof.verdict == "unproved"
    if trial.proof.verdict != "proved" and not uncounted:
        problems.append(f"the ledger is {trial.proof.verdict}: {trial.proof.violations}")
    if row.taken_back and row.taken_back not in trial.weakened:
        problems.append(f"the promise was not taken back: {trial.weakened}")
    if row.goes_back:
        problems += _went_back(trial)
    exact = row.goes_back or (row.promise == "exact-samples" and not row.taken_back)
    if exact and not apart <= row.apart:
        problems.append(f"max |dw| is {apart:.1e}, more than {row.apart:.0e} {trial.weakened}")
    return Outcome(row=row, inject=inject, trial=trial, apart=apart, problems=tuple(problems))


def _ended(trial: Trial) -> Sequence[str]:
    if trial.exit_code == 0:
        return ()
    return (f"exit code {trial.exit_code}", *trial.tail[-8:])


def _promised(row: Row, trial: Trial) -> Sequence[str]:
    history = trial.history
    if row.promise == "equal-count" and history.promise == "exact-samples" and trial.weakened:
        return ()  # a loss came before the ranks had found why
    said = f"{history.promise}: {history.promise_reason}"
    if history.promise != row.promise or row.why not in history.promise_reason:
        return (f"promised {said}",)
    return ()


def _struck(inject: str, history: History) -> Sequence[str]:
    missed = faults(parse(inject), history).missed
    return [f"never struck: {kill}" for kill in missed]


def _went_back(trial: Trial) -> Sequence[str]:
    times = len(trial.ways_back)
    return () if times == 1 else (f"all ranks went back {times} times {trial.notices}",)


def described(outcome: Outcome) -> str:
    """For a failing test."""
    trial = dataclasses.asdict(outcome.trial)
    return "\n".join([*outcome.problems, *trial["notices"], *trial["tail"]])
