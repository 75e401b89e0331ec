"""The address of this machine that others reach it at."""

import socket


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
