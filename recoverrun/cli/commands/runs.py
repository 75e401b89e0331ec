"""`recoverrun runs [DIR]`: the runs that are there, and removal of old ones."""

import json as jsonlib
import re
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.output.run_removal import is_held, remove_run
from recoverrun.reports.find_run import RUNS
from recoverrun.reports.run_list import Run, in_all, prunable, runs_below, table, to_json
from rendezvous.protocol.exit_codes import ExitCode

_AGE = re.compile(r"(\d{1,9})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

SCHEMA = 2


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("runs")(runs)


def runs(
    *,
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs are.")] = Path(
        RUNS
    ),
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove journals and logs of old runs, by --keep, --older-than or both; "
            "never of a run that may still run.",
        ),
    ] = False,
    keep: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Keep the newest N runs of each script."),
    ] = 0,
    older_than: Annotated[
        str,
        typer.Option(metavar="AGE", help="Remove runs that began longer ago, such as 7d or 12h."),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the runs below ./runs with their verdicts, and remove old ones."""
    found = runs_below(directory, socket.gethostname(), is_held)
    if not prune:
        if keep or older_than or yes:
            raise RecoverrunError("--keep, --older-than and --yes go with --prune", ExitCode.USAGE)
        _show(found, directory, json=json)
        return
    if not keep and not older_than:
        rule = "--prune needs a rule: --keep N, --older-than AGE, or both"
        raise RecoverrunError(rule, ExitCode.USAGE)
    old, alive = prunable(found, keep=keep, older_than_s=age(older_than), now=time.time())
    if alive:
        typer.echo(f"kept, as they may still run: {', '.join(run.name for run in alive)}", err=True)
    if not old:
        typer.echo("nothing to remove")
        return
    if not yes:
        _ask(old)
    removed = [run for run in old if remove_run(run.path)]
    typer.echo(f"removed {in_all(removed)}")
    for run in removed:
        if run.path.exists():
            typer.echo(f"{run.name}: other files in it stay", err=True)


def age(text: str) -> float:
    """Seconds of "7d" or "12h", 0 for ""; RecoverrunError for anything else."""
    match = _AGE.fullmatch(text)
    if text and match is None:
        raise RecoverrunError(f"--older-than must be like 7d or 12h, not {text!r}", ExitCode.USAGE)
    return float(match[1]) * _UNITS[match[2]] if match is not None else 0.0


def _show(found: list[Run], directory: Path, *, json: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps({"schema": SCHEMA, "runs": [to_json(run) for run in found]}))
    elif not found:
        typer.echo(f"there is no run in {directory}")
    else:
        typer.echo("\n".join([*table(found, time.localtime().tm_gmtoff), in_all(found)]))


def _ask(old: list[Run]) -> None:
    """Raises typer.Exit if the answer is no, RecoverrunError if there is nobody to ask."""
    typer.echo("\n".join(table(old, time.localtime().tm_gmtoff)))
    if not sys.stdin.isatty():
        raise RecoverrunError("no terminal to ask at: --yes removes them", ExitCode.USAGE)
    if not typer.confirm(f"Remove {in_all(old)}?"):
        raise typer.Exit(ExitCode.FAILED)
