"""`recoverrun witness [HOST:PORT]`: a vote for jobs of two nodes, from where none of them runs."""

import os
import signal
from typing import Annotated

import typer

from recoverrun.config import option_values
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.key_lookup import KeyedEndpoints, find_key
from recoverrun.launcher.network.witness_server import serve
from recoverrun.launcher.node.signals import SignalInbox
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.transport.station import Station

ENDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def register(app: typer.Typer) -> None:
    app.command("witness")(witness)


def witness(
    place: Annotated[
        str,
        typer.Argument(metavar="[HOST:PORT]", help="Where to listen; HOST * is every address."),
    ] = f"*:{option_values.WITNESS_PORT}",
    key_file: Annotated[
        str, typer.Option(metavar="FILE", help="Key of the jobs; none: no key.")
    ] = "",
    key_required: Annotated[bool, typer.Option(help="Do not listen without a key.")] = False,
) -> None:
    """Be the third vote of jobs of two nodes, which name it with --witness=HOST:PORT."""
    where = option_values.endpoint(place, option_values.WITNESS_PORT, "HOST:PORT")
    keyring = find_key(KeyedEndpoints((where,), key_file, key_required), os.environ)
    station = Station(keyring.key)
    signals = SignalInbox(ENDERS)
    signals.hold()
    try:
        try:
            hub = station.listen_tcp(where.host, where.port)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            sentence = f"cannot listen at {where}: {why}"
            raise RecoverrunError(sentence, ExitCode.NEVER_FORMED) from error
        typer.echo(f"recoverrun witness {station.incarnation} listens at {where}", err=True)
        if keyring.note:
            typer.echo(f"recoverrun: {keyring.note}", err=True)
        serve(station, hub, signals, lambda words: typer.echo(words, err=True))
    finally:
        station.close()
        signals.close()
