"""`recoverrun keygen [FILE]`: make a key, without which nobody can take part in a job."""

import os
from pathlib import Path
from typing import Annotated

import typer

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.key_lookup import own_file
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.transport.keys import new_text


def register(app: typer.Typer) -> None:
    app.command("keygen")(keygen)


def keygen(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="File for the key; by default ~/.config/recoverrun/key, where jobs look.",
        ),
    ] = None,
) -> None:
    """Make a key for the launchers of a job; the file has to be on all nodes."""
    path = file or own_file(os.environ)
    if path is None:
        raise RecoverrunError("there is no home directory: name a FILE", ExitCode.USAGE)
    make_key(path)
    how = "jobs find it there" if file is None else f"give it to jobs with --key-file {path}"
    typer.echo(f"wrote {path}: copy it to the same place on every node; {how}")


def make_key(path: Path) -> None:
    """Write a new key; one that is there stays. Raises RecoverrunError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise RecoverrunError(f"{path} is there already: remove it first", ExitCode.USAGE) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RecoverrunError(f"no key in {path}: {why}", ExitCode.USAGE) from error
    with os.fdopen(fd, "w") as out:
        out.write(new_text())
