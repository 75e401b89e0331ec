"""`recoverrun config [show] [--origin] [options]`: the options of a run, and where each is from."""

import os
from typing import Annotated

import typer

from recoverrun.config.option_table import DEFAULTS, TABLE
from recoverrun.config.options import gather
from recoverrun.errors import RecoverrunError
from recoverrun.text import sanitize
from rendezvous.protocol.exit_codes import ExitCode

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    app.command("config", context_settings=PASS_ON)(config)


def config(
    context: typer.Context,
    action: Annotated[str, typer.Argument(help="show", metavar="[show]")] = "show",
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value comes from.")
    ] = False,
) -> None:
    """Show the options that a run in this directory would have."""
    options = [action, *context.args] if action.startswith("-") else context.args
    if action != "show" and options is context.args:
        raise RecoverrunError(f"config knows only show, not {action!r}", ExitCode.USAGE)
    for line in shown(options, dict(os.environ), origin=origin):
        typer.echo(line)


def shown(arguments: list[str], environ: dict[str, str], *, origin: bool) -> list[str]:
    """One line for each option. Raises RecoverrunError as the run would."""
    settings = gather(arguments, environ)
    assert settings is not None, "help is taken before"
    lines = []
    for option in TABLE:
        if not option.panel or option.field == "dry_run":
            continue
        value = getattr(settings.options, option.field)
        text = sanitize(str("" if value is None else value))
        line = f"{option.names[0].removeprefix('--')} = {text}".rstrip()
        changed = value != DEFAULTS[option.field] or option.field in settings.origins
        source = settings.origins.get(option.field, "default") if changed else "default"
        lines.append(f"{line:<40}  {source}" if origin else line)
    return lines
