"""The network interface by which workers of this node reach those of others, for gloo.

gloo takes the address that this host's own name leads to. Where that is 127.0.1.1, as Debian has it
in /etc/hosts, or no address of this host, it takes the loopback interface, and no other node can
connect. The launcher knows the way to the others: they have just met.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from recoverrun.config.option_values import Endpoint
from recoverrun.config.run_config import RunConfig
from recoverrun.launcher.network.addresses import local_address
from rendezvous.protocol.formation_messages import Start
from rendezvous.transport.own_addresses import address_of, own_name_leads_to

VARIABLE = "GLOO_SOCKET_IFNAME"

_ANY_PORT = 9


class WayToOthers:
    """The network variables for workers of the launcher `own` (its incarnation)."""

    def __init__(self, config: RunConfig, own: str) -> None:
        self._config = config
        self._own = own
        self._taken = ""  # by gloo, if it is told nothing

    def look_up(self) -> None:
        """See where this host's own name leads to. It may take as long as a lookup takes."""
        self._taken = own_name_leads_to()

    def environ(self, start: Start, inherited: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
        """The environment for workers, and what a person should read of it, or ""."""
        if absent := absent_interfaces(inherited):
            known = ", ".join(name for _, name in socket.if_nameindex())
            names = f"{VARIABLE} names {', '.join(absent)}, and this node has {known}"
            return inherited, f"{names}: gloo cannot connect"
        interface = gloo_interface(self._config, start, self._own, self._taken, inherited)
        if not interface:
            return inherited, ""
        why = f"this host's name leads to {self._taken}, where no other node can connect"
        return {**inherited, VARIABLE: interface}, f"{VARIABLE}={interface} is set: {why}"


def absent_interfaces(environ: Mapping[str, str]) -> list[str]:
    """The interfaces that gloo is told to use, and that this host does not have."""
    wanted = environ.get(VARIABLE, "").split(",")
    known = {name for _, name in socket.if_nameindex()}
    return [name for name in wanted if name and name not in known]


def gloo_interface(
    config: RunConfig, start: Start, own: str, taken: str, environ: Mapping[str, str]
) -> str:
    """The interface that gloo has to be told, "" where it finds its way or the user knows better.

    `own` is the incarnation of this launcher, `taken` the address that gloo would take.
    """
    if start.nnodes == 1 or environ.get(VARIABLE) or not _is_loopback(taken):
        return ""
    for place in _others(config, start, own):
        address = local_address(place)
        if not _is_loopback(address):
            return _interface_of(address)
    return ""  # All nodes are on this host.


def _others(config: RunConfig, start: Start, own: str) -> Iterator[Endpoint]:
    """The addresses of the other nodes."""
    for name, host, _, _ in start.peers:
        if host and name != own:
            yield Endpoint(host=host, port=_ANY_PORT)
    if config.endpoint is not None:
        yield config.endpoint


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True  # "*": no way is known.


def _interface_of(address: str) -> str:
    """The interface with this address, or ""."""
    if ":" in address:
        return _with_ipv6(address.partition("%")[0])
    for _, name in socket.if_nameindex():
        with suppress(OSError):  # It has no such address.
            if address_of(name) == address:
                return name
    return ""


def _with_ipv6(address: str) -> str:
    wanted = ip_address(address).packed.hex()
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if digits == wanted:
                return name
    return ""
