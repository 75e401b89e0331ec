"""The address at which this launcher listens, or which it calls: decided by who can bind the
endpoint.

A host name stands for one address that both ends find: IPv4 if it has one. Nothing is advertised
that a user did not write: nodes reach each other under the name that is in their command line.
"""

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import replace

from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.network.frames import Content, opened
from rendezvous.protocol import codec
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal, Running
from rendezvous.protocol.messages import Message
from rendezvous.transport.links import Dealer, Hub, Incoming
from rendezvous.transport.own_addresses import address_in, address_towards
from rendezvous.transport.station import Station

ELSEWHERE = (errno.EADDRNOTAVAIL, errno.ENODEV)


class TakenError(Exception):
    """The endpoint is at this machine, and its port is in use: by another launcher, or not."""


def open_hub(station: Station, config: RunConfig) -> Hub | None:
    """The socket on which this launcher serves the others, or None if it is not the one.

    Raises TakenError if another may be, and RecoverrunError if it must be the one and cannot.
    """
    if config.endpoint is None or not (config.must_host or config.may_host):
        return None
    # If any node may serve, all must try the same place, or two of them would serve.
    for endpoint in config.endpoints if config.must_host else config.endpoints[:1]:
        for address in addresses(endpoint.host):
            try:
                return station.listen_tcp(address, endpoint.port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and not config.must_host:
                    raise TakenError from error
                if error.errno not in ELSEWHERE:
                    raise _unable(endpoint, error) from error
    if not config.must_host:
        return None
    # The user says that this node is the one, so the name leads here from outside (NAT, service).
    endpoint = config.endpoint
    everywhere = "::" if ":" in addresses(endpoint.host)[0] else "*"
    try:
        return station.listen_tcp(everywhere, endpoint.port)
    except OSError as error:
        raise _unable(endpoint, error) from error


def claim(hub: Hub, config: RunConfig) -> bool:
    """Listen at the endpoint too: any node may be the one. False if that port is not free yet."""
    endpoint = config.endpoints[0]
    for address in addresses(endpoint.host):
        try:
            hub.listen_also(address, endpoint.port)
        except OSError as error:
            if error.errno not in ELSEWHERE:
                return False  # Still taken; whatever else it is, the one who answers there knows.
        else:
            return True
    return False


def answer_again(hub: Hub, endpoints: Sequence[Endpoint]) -> bool:
    """Be found at the endpoint as before. True if nobody else is; others are told our own port."""
    places = [(host, one.port) for one in endpoints for host in addresses(one.host)]
    # A name may lead here from outside, as for `open_hub`.
    everywhere = [("::" if ":" in host else "*", port) for host, port in places]
    return any(hub.answer_also(host, port) for host, port in (*places, *everywhere))


def open_uplink(station: Station, endpoints: Sequence[Endpoint], *, keeps: bool = False) -> Dealer:
    """The connection to the launcher that serves the others; `keeps` as for `connect_tcp`. Raises
    RecoverrunError.
    """
    try:
        return station.connect_tcp(
            *(place for endpoint in endpoints for place in _places(endpoint)), keeps=keeps
        )
    except OSError as error:
        raise RecoverrunError(
            f"{written(endpoints)} cannot be reached: {error.strerror}", ExitCode.NEVER_FORMED
        ) from error


def _places(endpoint: Endpoint) -> list[tuple[str, int]]:
    found = addresses(endpoint.host)
    # A name stays a name: it may lead to another address once the peer is there.
    hosts = found if len(found) > 1 or ":" in found[0] else [endpoint.host]
    return [(host, endpoint.port) for host in hosts]


def written(endpoints: Sequence[Endpoint]) -> str:
    return ", ".join(map(str, endpoints))


def addresses(host: str) -> list[str]:
    """The addresses of `host`, IPv4 before IPv6; `host` itself if there is none yet."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return [host]
    unique = dict.fromkeys(address_in(info[4]) for info in found)
    return sorted(unique, key=lambda address: ":" in address) or [host]


def local_address(endpoint: Endpoint) -> str:
    """The address of this machine from which the endpoint would be called; "*" if none is known."""
    return address_towards(addresses(endpoint.host)[0], endpoint.port)


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


def understood(incoming: Incoming, hub: Hub, station: Station, now: float) -> Content | None:
    """The message of another launcher, with its address; None, and a count, if it is none."""
    try:
        heads, message = opened(incoming.frames)
    except codec.RemoteProtocolError as error:
        station.log(f"{error} ({incoming.address})", now)
        if isinstance(error, codec.VersionMismatch):
            # It will not understand us either, and say the same.
            refusal = Refusal(reason=str(error), exit_code=ExitCode.NEVER_FORMED)
            hub.send(incoming.sender, station.incarnation.encode(), codec.encode(refusal))
        return None
    return heads, located(message, incoming.address)


def located(message: Message, address: str) -> Message:
    """A message that came from `address`: what it left open about that is filled in."""
    if isinstance(message, Running):
        return replace(message, address=address)
    if not isinstance(message, Join):
        return message
    master = message.master
    return replace(
        message, address=address, master=f"{address}{master}" if master[:1] == ":" else master
    )


def _unable(endpoint: Endpoint, error: OSError) -> RecoverrunError:
    why = os.strerror(error.errno).lower() if error.errno else str(error)
    if error.errno == errno.EINVAL and _is_link_local(endpoint.host):
        address = endpoint.host.partition("%")[0]
        why = f"a link-local address needs an interface of this node, as in [{address}%eth0]"
    return RecoverrunError(f"cannot listen at {endpoint}: {why}", ExitCode.NEVER_FORMED)


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False  # a name
