"""Runs of one script under either launcher, and how far apart they ended."""

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from recoverrun.fault_injection.trial import Trial, launch
from tests.bench import jobs
from tests.e2e.plain import unspoilt
from tests.hunt.plain import Plain
from tests.truth.case import SCRIPTS, Case
from tests.warm.launchers import LAUNCHERS

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 90.0
PLAIN_WITHIN_S = 50.0
FIGURES = re.compile(r"^step .*", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The remains of the ranks of a run that is over."""

    code: int | None  # None: it was ended by us
    weights: dict[int, dict[str, torch.Tensor]]
    figures: tuple[str, ...]  # the lines that the script printed
    output: str
    wall_s: float


def under_torchrun(case: Case, folder: Path) -> Left:
    """The run that ours is held to."""

    def attempt(number: int) -> Left:
        place = folder / str(number)
        out = place / "out"
        out.mkdir(parents=True)
        script = str(SCRIPTS / case.script)
        arguments = (str(out), *case.arguments)
        ran = jobs.run(
            "torchrun", case.ranks, script, arguments, directory=place, timeout_s=PLAIN_WITHIN_S
        )
        return _left(ran.code, out, ran.output + ran.errors, ran.wall_s)

    return unspoilt(attempt, lambda left: left.output, lambda left: left.code is None)


def under_torch(case: Case, folder: Path, plain: Plain) -> Left:
    """The same run without the launcher, whose start takes longer than the training."""

    def attempt(number: int) -> Left:
        place = folder / str(number)
        out = place / "out"
        out.mkdir(parents=True)
        began = time.monotonic()
        codes = plain.run(SCRIPTS / case.script, place, case.ranks, str(out), *case.arguments)
        said = "\n".join(path.read_text() for path in sorted(place.glob("out.*")))
        code = None if -signal.SIGKILL in codes else max(map(abs, codes))
        return _left(code, out, said, time.monotonic() - began)

    return unspoilt(attempt, lambda left: left.output, lambda left: left.code is None)


def ours(
    case: Case, folder: Path, inject: str = "", within_s: float = WITHIN_S, *, ends: bool = False
) -> tuple[Left, Trial]:
    """`ends`: the script ends a rank by itself. Raises RecoverrunError where it is not over within
    `within_s`.
    """
    out = folder / "out"
    out.mkdir(parents=True)
    said: list[str] = []
    # What survivors do alone is held against the plain run: nobody comes back.
    options = (f"--nproc-per-node={case.ranks}", *(["--no-return"] if inject or ends else []))
    trial = launch(
        (*options, str(SCRIPTS / case.script), str(out), *case.arguments),
        run_dir=folder / "run",
        inject=inject,
        timeout_s=within_s,
        environment={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        on_line=said.append,
        start=LAUNCHERS.starter,
    )
    return _left(trial.exit_code, out, "\n".join(said), trial.wall_s), trial


def _left(code: int | None, out: Path, output: str, wall_s: float) -> Left:
    weights = {
        int(path.stem.removeprefix("weights")): torch.load(path, weights_only=True)
        for path in sorted(out.glob("weights*.pt"))
    }
    figures = tuple(sorted(FIGURES.findall(output)))
    return Left(code=code, weights=weights, figures=figures, output=output, wall_s=wall_s)


def apart(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The largest difference of two ranks' weights; infinite where they do not compare."""
    if one.keys() != two.keys():
        return float("inf")
    return max(
        float((one[name].double() - two[name].double()).abs().nan_to_num(torch.inf).max())
        for name in one
    )


def story(left: Left, trial: Trial) -> str:
    """For a failing test."""
    facts = trial.history
    promise = f"{facts.promise}: {facts.promise_reason}; weakened: {facts.weakened}"
    return os.linesep.join([f"exit {left.code}", promise, *trial.notices, *trial.tail[-25:]])
