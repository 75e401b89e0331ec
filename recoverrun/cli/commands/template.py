"""`recoverrun template NAME`: a job file for a scheduler, on standard output."""

from typing import Annotated

import typer

from recoverrun.deployments.deployment_table import DEPLOYMENTS
from recoverrun.deployments.rendered_template import Values, rendered

_VALUES = Values()


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("template")(template)


def _named(incomplete: str) -> list[tuple[str, str]]:
    """The names of job files that begin so, each with what it undoes."""
    return [(one.name, one.undoes) for one in DEPLOYMENTS if one.name.startswith(incomplete)]


def template(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Name of a template; without one, list all.",
            autocompletion=_named,
        ),
    ] = "",
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes.")] = _VALUES.nodes,
    least: Annotated[
        int, typer.Option("--min", metavar="M", help="Fewest replicas with which the job goes on.")
    ] = _VALUES.least,
    nproc: Annotated[
        int, typer.Option(metavar="N", help="Workers of each node; 0: one a GPU, or one a core.")
    ] = _VALUES.nproc,
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs of each node.")] = _VALUES.gpus,
    image: Annotated[str, typer.Option(metavar="IMAGE", help="With recoverrun.")] = _VALUES.image,
    job: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the job.")] = _VALUES.name,
    script: Annotated[
        str, typer.Option(metavar="'SCRIPT ARGS'", help="What to run.")
    ] = _VALUES.script,
) -> None:
    """Print a job file for Slurm, Kubernetes and others that lets survivors live."""
    if not name:
        for one in DEPLOYMENTS:
            typer.echo(f"{one.name:<10} {one.file:<20} undoes: {one.undoes}")
        return
    values = Values(
        nodes=nodes,
        least=least,
        nproc=nproc,
        gpus=gpus,
        image=image,
        name=job,
        script=script,
    )
    typer.echo(rendered(name, values), nl=False)
