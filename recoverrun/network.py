"""Where this launcher listens, or whom it calls: decided by who can bind the endpoint.

A host name stands for one address that both ends find: IPv4 if it has one. Nothing is advertised
that a user did not write: nodes reach each other under the name that is in their command line.
"""

import errno
import os
import socket
from dataclasses import replace

from recoverrun.config import RunConfig
from recoverrun.errors import ExitCode, RecoverrunError
from recoverrun.meanings import Endpoint
from rendezvous.messages import Join, Message, Refusal
from rendezvous.transport import Dealer, Hub, Station
from rendezvous.wire import VersionMismatch

ELSEWHERE = (errno.EADDRNOTAVAIL, errno.ENODEV)


def open_hub(station: Station, config: RunConfig) -> Hub | None:
    """The socket on which this launcher serves the others, or None if it is not the one.

    Raises RecoverrunError if it must be the one and cannot.
    """
    endpoint = config.endpoint
    if endpoint is None or not (config.must_host or config.may_host):
        return None
    address = resolve(endpoint.host)
    try:
        return station.listen_tcp(address, endpoint.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and not config.must_host:
            return None  # Another launcher on this machine was faster, or we shall find a stranger.
        if error.errno not in ELSEWHERE:
            raise _unable(endpoint, error) from error
    if not config.must_host:
        return None
    # The user says that this node is the one, so the name leads here from outside (NAT, service).
    try:
        return station.listen_tcp("*", endpoint.port)
    except OSError as error:
        raise _unable(endpoint, error) from error


def open_uplink(station: Station, endpoint: Endpoint) -> Dealer:
    """The connection to the launcher that serves the others. Raises RecoverrunError."""
    address = resolve(endpoint.host)
    # A name stays a name: it may lead to another address once the peer is there.
    host = address if ":" in address else endpoint.host
    try:
        return station.connect_tcp(host, endpoint.port)
    except OSError as error:
        raise RecoverrunError(
            f"{endpoint} cannot be reached: {error.strerror}", ExitCode.NEVER_FORMED
        ) from error


def resolve(host: str) -> str:
    """The address of `host`, IPv4 before IPv6; `host` itself if there is none yet."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return host
    addresses = [str(info[4][0]) for info in found]
    return min(addresses, key=lambda address: ":" in address, default=host)


def free_port() -> int:
    """A TCP port that nobody uses at this moment, for MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def master_address(config: RunConfig, *, hosts: bool) -> str:
    """host:port at which rank 0 could listen, if it is one of this node: new for every attempt.

    The launcher that `hosts` the rendezvous is known to the others by the endpoint's name. Of the
    others there is only the port: their address is the one from which they are seen to come.
    """
    endpoint = config.endpoint
    taken = endpoint is not None and endpoint.port == config.master_port
    port = config.master_port if config.master_port and not taken else free_port()
    if config.local_addr:
        return f"{config.local_addr}:{port}"
    if endpoint is None:
        return f"127.0.0.1:{port}"
    return f"{endpoint.host if hosts else ''}:{port}"


def located(message: Message, address: str) -> Message:
    """A message that came from `address`: what it left open about that is filled in."""
    if not isinstance(message, Join):
        return message
    host, _, port = message.master.rpartition(":")
    return replace(message, address=address, master=f"{host or address}:{port}")


def unintelligible(error: VersionMismatch) -> Refusal:
    """The answer to a launcher of another protocol, which will say the same of us."""
    return Refusal(reason=str(error), exit_code=ExitCode.NEVER_FORMED)


def _unable(endpoint: Endpoint, error: OSError) -> RecoverrunError:
    why = os.strerror(error.errno).lower() if error.errno else str(error)
    return RecoverrunError(f"cannot listen at {endpoint}: {why}", ExitCode.NEVER_FORMED)
