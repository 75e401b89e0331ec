"""Addresses of this host: that of an interface, the one by which others reach it, and that of its
own name.
"""

import fcntl
import socket
import struct
from contextlib import suppress

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915


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
            probe.connect((host, port))  # Nothing is sent by that.
            return str(probe.getsockname()[0])
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
                return str(place[0])
    return LOOPBACK
