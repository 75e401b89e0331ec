"""Addresses of this host: that of an interface, the one by which others reach it, and that of its
own name.

A link-local address of IPv6 means nothing without its interface (fe80::1%eth0). Python's sockets
keep that as a number beside the text, and do not read it from the text.
"""

import fcntl
import socket
import struct
from contextlib import suppress

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915

SocketName = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
"""The address of a socket of Python's: of IPv4, of IPv6, of a family that it does not know."""


def socket_name(address: str, port: int) -> SocketName:
    """The name for a socket of this place. Raises OSError for what is no address."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)
    return found[0][4]


def address_in(name: SocketName) -> str:
    """The address in a socket's name, with its interface where it means nothing without."""
    return socket.getnameinfo(name, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]


def address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface. Raises OSError if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def address_towards(host: str, port: int) -> str:
    """The address from which this place would be called; "*" if none is known. `host` is an
    address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(socket_name(host, port))  # Nothing is sent by that.
            return address_in(probe.getsockname())
    except OSError:
        return "*"


def own_name_leads_to() -> str:
    """The address that gloo would take by itself: the first of this host's name that is its own."""
    with suppress(OSError):
        for family, *_, place in socket.getaddrinfo(
            socket.gethostname(), 0, type=socket.SOCK_STREAM
        ):
            with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(place)
                return address_in(place)
    return LOOPBACK
