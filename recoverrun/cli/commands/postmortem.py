"""`recoverrun postmortem [RUN]`: what happened, why, what it cost, and whether the ledger is whole.

Reads journal files and nothing else, so it works on a run that is over, dead or still going.
"""

import json as jsonlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recoverrun.errors import ExitCode
from recoverrun.reports.find_run import RunNotFound, find_run
from recoverrun.reports.postmortem import postmortem
from recoverrun.reports.postmortem_json import SCHEMA, proof_json, to_json
from recoverrun.reports.postmortem_screen import render, render_proof
from recoverrun.reports.status_screen import glyphs
from rendezvous.journal.reader import read_run
from rendezvous.protocol.effects import Json

WIDEST = 132  # Longer lines are hard to read, whatever the terminal has.


@dataclass(frozen=True, slots=True)
class PostmortemConfig:
    run_dir: Path
    json: bool
    verify: bool
    everything: bool


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("postmortem")(command)


def command(
    run: Annotated[
        str, typer.Argument(help="Run directory, name below ./runs, or latest.")
    ] = "latest",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Prove from the journal that each step had its microbatches exactly once: "
            "exit 0 proved, 85 violated, 1 not provable.",
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Fold nothing: all losses, findings, unreadable places.")
    ] = False,
) -> None:
    """Tell what happened in a run: root cause, losses, recovery times, invariants."""
    try:
        run_dir = find_run(run, Path.cwd())
    except RunNotFound as error:
        typer.echo(f"recoverrun postmortem: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    config = PostmortemConfig(run_dir=run_dir, json=json, verify=verify, everything=everything)
    raise typer.Exit(show(config, Console(highlight=False)))


def show(config: PostmortemConfig, console: Console) -> int:
    """Print the page, the proof or the JSON; returns the exit code."""
    found = postmortem(read_run(config.run_dir))
    code = found.proof.exit_code if config.verify else 0
    signs = glyphs(console)
    if config.json:
        proof: dict[str, Json] = {
            "schema": SCHEMA,
            "run_dir": found.run_dir,
            "invariant": proof_json(found.proof),
        }
        typer.echo(jsonlib.dumps(proof if config.verify else to_json(found), indent=2))
    elif config.verify:
        console.print(render_proof(found.proof, signs, everything=config.everything))
    else:
        columns = min(console.width, WIDEST)
        offset = time.localtime(found.latest or None).tm_gmtoff
        page = render(
            found, signs, columns=columns, utc_offset_s=offset, everything=config.everything
        )
        console.print(page, width=columns)
    return code
