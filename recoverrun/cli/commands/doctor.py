"""`recoverrun doctor [options of the run]`: what would hinder it, on this node or on all."""

from typing import Annotated

import typer

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    usage = "[--json] [--alone] [OPTIONS OF THE RUN] [SCRIPT]"
    app.command("doctor", context_settings=PASS_ON, options_metavar=usage)(doctor)


def doctor(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Look at this node only, also of a job of several.")
    ] = False,
) -> None:
    """Say what would hinder a run with these options, and how to mend it; exit 83 with an error."""
    from recoverrun.cli.examination import examination  # Not at the top: help needs none of it.

    text, code = examination(context.args, json=json, alone=alone)
    typer.echo(text)
    raise typer.Exit(code)
