"""`recoverrun metrics`: the numbers of a run for Prometheus, once into a file or at a port."""

from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from recoverrun.cli.completion import run_names
from recoverrun.config import option_values
from recoverrun.errors import RecoverrunError
from recoverrun.metrics.exposition import Meter, serve, text, write
from recoverrun.reports.find_run import RunNotFound, find_run
from rendezvous.protocol.exit_codes import ExitCode


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("metrics")(metrics)


def metrics(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]",
            help="Run directory, name below ./runs, or latest.",
            autocompletion=run_names,
        ),
    ] = "latest",
    once: Annotated[
        str, typer.Option(metavar="FILE", help="Write them into FILE (-: print them) and leave.")
    ] = "",
    port: Annotated[str, typer.Option(metavar="[HOST:]PORT", help="Serve them until ctrl-c.")] = "",
) -> None:
    """Give the numbers of a run to Prometheus, in a file or at a port."""
    if bool(once) == bool(port):
        raise RecoverrunError("metrics: give --once FILE or --port PORT", ExitCode.USAGE)
    try:
        meter = Meter(find_run(run, Path.cwd()))
    except RunNotFound as error:
        raise RecoverrunError(f"metrics: {error}", ExitCode.USAGE) from None
    if port:
        place = option_values.metrics_place(port, "--port")
        end = serve(place, meter.series)
        typer.echo(f"recoverrun metrics: http://{place}/metrics", err=True)
        try:
            Event().wait()
        finally:
            end()
    content = text(meter.series())
    if once == "-":
        typer.echo(content.decode(), nl=False)
    else:
        write(Path(once), content)
