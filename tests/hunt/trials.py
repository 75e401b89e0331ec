"""Runs a generated script: under plain torch, without a loss, and with one."""

import os
import re
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from recoverrun.errors import RecoverrunError
from recoverrun.fault_injection.trial import launch
from recoverrun.fault_injection.verdict import faults
from rendezvous.journal.reader import read_run
from rendezvous.protocol.fault_schedule import parse
from tests.compat.lost_and_back import refuses, starts_again
from tests.compat.watched_run import PATIENCE, watched
from tests.hunt import verdict
from tests.hunt.books import Books, read
from tests.hunt.places import SHARDS
from tests.hunt.plain import ROOT, Plain
from tests.hunt.plan import Plan
from tests.hunt.script import AGAIN, written
from tests.hunt.verdict import Ended, Verdict
from tests.warm.launchers import LAUNCHERS

WITHIN_S = 60.0
RETURNS_WITHIN_S = 300.0
"""A fresh process imports torch, and survivors wait for it 150 s at the longest."""

ALONE = ("--no-return",)
TRIES = 4
STEERED = re.compile(r"is over \d+ of \d+ ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The outcome of one plan."""

    plan: Plan
    whole: Verdict | None  # without a loss, if that was run
    lossy: Verdict | None

    @property
    def verdicts(self) -> list[Verdict]:
        return [one for one in (self.whole, self.lossy) if one is not None]

    @property
    def findings(self) -> list[Verdict]:
        return [one for one in self.verdicts if one.kind == "finding"]


def tried(
    plan: Plan,
    folder: Path,
    plain: Plain,
    *,
    whole: bool = True,
    lossy: bool = True,
    returns: bool = False,
    within_s: float = WITHIN_S,
    environment: Mapping[str, str] | None = None,
) -> Case:
    """Run the script of `plan` without a loss (`whole`) and with one (`lossy`), after which the
    survivors wait for a process in the lost one's place (`returns`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(written(plan))
    if plan.place == "module":
        (folder / "shards.py").write_text(SHARDS)
    reference = _plainly(script, folder / "plain", plan, plain)
    first = second = None
    run = partial(_run, script, plan, within_s=within_s, environment=environment or {})
    if whole:
        found, ended = run(folder / "whole", lossy=False)
        first = verdict.without_loss(reference, found, ended, plan.world)
    if lossy:
        found, ended = run(folder / "lossy", lossy=True, returns=returns)
        poisonous = plan.odd in AGAIN
        second = verdict.with_loss(
            reference, found, ended, plan.world, poisonous=poisonous, returns=returns
        )
    return Case(plan=plan, whole=first, lossy=second)


def _plainly(script: Path, folder: Path, plan: Plan, plain: Plain) -> Books:
    folder.mkdir()
    codes = plain.run(script, folder, plan.world)
    for again in range(TRIES):
        if -signal.SIGKILL not in codes or {*codes} - {0, -signal.SIGKILL}:
            break  # what has not ended: see `plain.TOGETHER_S`
        folder = folder.with_name(f"plain again {again}")
        folder.mkdir()
        codes = plain.run(script, folder, plan.world)
    output = (folder / "out.0").read_text().splitlines()
    assert not any(codes), f"seed {plan.seed} is no script: {codes} {output[-20:]}"
    return read(folder, output)


def _run(
    script: Path,
    plan: Plan,
    folder: Path,
    *,
    lossy: bool,
    within_s: float,
    environment: Mapping[str, str],
    returns: bool = False,
) -> tuple[Books, Ended]:
    folder.mkdir()
    go = folder / "go"
    planted = bool(environment)
    environment = _environment(folder, environment, returns=returns)
    if lossy and plan.suicide:
        environment["HUNT_DIES"] = plan.suicide
    inject = plan.inject if lossy else ""
    output: list[str] = []
    # Survivors wait for the process in the lost one's place, or for the word that nobody comes.
    waiting = watched(folder / "run", go, refuses, since=starts_again) if returns else nullcontext()
    try:
        with waiting:
            trial = launch(
                (*ALONE * (lossy and not returns), f"--nproc-per-node={plan.world}", str(script)),
                run_dir=folder / "run",
                inject=inject,
                timeout_s=within_s,
                environment=environment,
                on_line=output.append,
                # What an environment plants is there before we are imported.
                start=None if planted else LAUNCHERS.starter,
            )
    except RecoverrunError:
        (folder / "output").write_text("\n".join(output))
        struck = bool(inject) or (folder / "died").exists()
        return read(folder, output), Ended(code=-1, hung=True, struck=struck, tail=output[-30:])
    (folder / "output").write_text("\n".join(output))
    history = trial.history
    missed = faults(parse(inject), history).missed if inject else ()
    steered = next((one for one in trial.notices if STEERED.search(one)), "")
    refused = [one.reason for one in read_run(trial.run_dir).of("notice.give") if refuses(one)]
    return read(folder, output), Ended(
        code=trial.exit_code,
        promise=history.promise,
        reason=history.promise_reason,
        weakened=trial.weakened,
        steered=steered,
        struck=not missed if inject else (folder / "died").exists(),
        refused=next(iter(refused), ""),
        tail=trial.tail,
    )


def _environment(folder: Path, environment: Mapping[str, str], *, returns: bool) -> dict[str, str]:
    """Of a run in `folder`; `environment` has more."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    path = [*filter(None, [environment.get("PYTHONPATH")]), *[str(PATIENCE)] * returns, *path]
    return {
        **environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "",  # else a line and its end are written apart, and lines mix
        "HUNT_FOLDER": str(folder), **({"COMPAT_GO": str(folder / "go")} if returns else {}),
    }  # fmt: skip
