"""`recoverrun postmortem [RUN]`: what happened, why, what it cost, and whether the ledger is whole.

Reads journal files and nothing else, so it works on a run that is over, dead or still going.
"""

import json as jsonlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from recoverrun.cli.completion import run_names
from recoverrun.cli.exports import Exports, Material, export
from recoverrun.reports.find_run import RunNotFound, find_run, strangers
from recoverrun.reports.history import history
from recoverrun.reports.postmortem import judged
from recoverrun.reports.postmortem_json import SCHEMA, proof_json, to_json
from recoverrun.reports.postmortem_screen import render, render_proof
from recoverrun.reports.screen_style import glyphs
from recoverrun.version import versions
from rendezvous.journal.reader import read_run
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.records import Json

WIDEST = 132  # Longer lines are hard to read, whatever the terminal has.


@dataclass(frozen=True, slots=True)
class PostmortemConfig:
    run_dirs: tuple[Path, ...]  # of one run
    json: bool
    verify: bool
    everything: bool
    exports: Exports = Exports()


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("postmortem")(command)


def _to_file(name: str, words: str) -> Any:
    return typer.Option(
        name, metavar="FILE", help=words, dir_okay=False, rich_help_panel="Files to write"
    )


def command(
    *,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run directory, name or job number below ./runs, or latest; "
            "those of several nodes are one run.",
            autocompletion=run_names,
        ),
    ] = None,
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
    html: Annotated[Path | None, _to_file("--html", "A page with pictures, in one file.")] = None,
    perfetto: Annotated[
        Path | None, _to_file("--perfetto", "A trace for ui.perfetto.dev (.json.gz).")
    ] = None,
    csv: Annotated[Path | None, _to_file("--csv", "All steps as a table.")] = None,
    bundle: Annotated[
        Path | None,
        _to_file(
            "--bundle",
            "For a bug report (.tar.gz): journals, tails of logs, stacks; secrets are masked.",
        ),
    ] = None,
) -> None:
    """Tell what happened in a run: root cause, losses, recovery times, invariants."""
    try:
        found = tuple(find_run(run, Path.cwd()) for run in runs or ["latest"])
    except RunNotFound as error:
        typer.echo(f"recoverrun postmortem: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    run_dirs = tuple(dict.fromkeys(found))
    config = PostmortemConfig(
        run_dirs=run_dirs,
        json=json,
        verify=verify,
        everything=everything,
        exports=Exports(html=html, perfetto=perfetto, csv=csv, bundle=bundle),
    )
    raise typer.Exit(show(config, Console(highlight=False)))


def show(config: PostmortemConfig, console: Console) -> int:
    """Write files, or print the page, the proof or the JSON; returns the exit code."""
    log = read_run(*config.run_dirs)
    wrong = strangers(log) if len(config.run_dirs) > 1 else ""
    if wrong:
        typer.echo(f"recoverrun postmortem: {wrong}", err=True)
        return ExitCode.USAGE
    facts = history(log)
    found = judged(facts, log)
    code = found.proof.exit_code if config.verify else 0
    signs = glyphs(console)
    offset = time.localtime(found.latest or None).tm_gmtoff
    if config.exports.any:
        material = Material(
            found=found,
            facts=facts,
            run_dirs=config.run_dirs,
            utc_offset_s=offset,
            environment=os.environ,
            about=versions(),
            doctor=_doctor,
        )
        for said in export(config.exports, material):
            typer.echo(said, err=True)
        if not config.json and not config.verify:
            return code
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
        page = render(
            found, signs, columns=columns, utc_offset_s=offset, everything=config.everything
        )
        console.print(page, width=columns, crop=False)  # A command is copied whole.
    return code


def _doctor() -> str:
    """The doctor's report on this machine."""
    from recoverrun.cli.examination import for_bundle  # Only a bundle holds it.

    return for_bundle()
