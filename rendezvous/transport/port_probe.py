"""Asking a host whether anybody listens at a port: the only proof of a launcher's end there is.

A host that refuses a connection is alive and says that nobody is there. Silence, a reset, a timeout
or an unreachable network prove nothing; nor does a connection, which the kernel accepts for a
process that stands still.
"""

import errno
import socket
from contextlib import suppress

from rendezvous.transport.own_addresses import socket_name


class Probe:
    """One question, asked without waiting; `fd` becomes readable, or in error, with the answer."""

    def __init__(self, host: str, port: int) -> None:
        """`host` is an address: names are not looked up."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._error = self._socket.connect_ex(socket_name(host, port))
        except OSError as error:  # what is no address
            self._error = error.errno or errno.EINVAL

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def refused(self) -> bool:
        """True if the host has said that nobody listens there."""
        if self._error == errno.EINPROGRESS:
            self._error = (
                self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.EINPROGRESS
            )
        return self._error == errno.ECONNREFUSED

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
