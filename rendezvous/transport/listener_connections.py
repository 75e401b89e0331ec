"""The connections to a listening socket, and how many of them are from nobody we know.

Each costs a descriptor, before any key is shown. Strangers may have half of what this process can
open. When there are more, the host that has most of them loses its newest: a flood comes from few
hosts, and launchers that call meanwhile from others are let in as ever. Where no host has more than
another it is whoever comes that is sent away, and calls again if it is a launcher: those that came
sooner are nearer to the end of their handshake.
"""

import errno
import resource
import socket as sockets
import struct
from collections import defaultdict
from itertools import islice

import zmq

from rendezvous.transport.sockets import (
    FAILURES,
    Context,
    Socket,
    drain,
    hang_up,
    monitor,
    peer_of,
    resend_soon,
)

STRANGERS = 1_000
"""Connections of peers that have not spoken yet. ZeroMQ serves them all at once: of 5,000 together
none would be done in its time, so most would begin again."""

FEWEST = 8
"""So many may come at once wherever a launcher runs at all."""

RESERVED_FDS = 64
"""Descriptors that are not for connections: workers, files, the launcher itself."""

EVENTS_AT_ONCE = 1_000
"""Events that are counted before the launcher does anything else."""

HUNG_UP = (
    (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, errno.ECONNRESET),
    (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, errno.EPIPE),
)
"""Events of ZeroMQ: the other end closed the connection before it had introduced itself."""


class ListenerConnections:
    """The connections of one socket, by descriptor."""

    def __init__(self, context: Context, socket: Socket) -> None:
        self.socket = monitor(
            context, socket, FAILURES | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        )
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = limit == resource.RLIM_INFINITY
        share = STRANGERS if unlimited else (limit - RESERVED_FDS) // 2
        self._most = min(STRANGERS, max(FEWEST, share))
        self._strangers: dict[int, str] = {}  # their addresses
        self._newest: defaultdict[str, dict[int, None]] = defaultdict(dict)  # last, by host
        self._members: set[int] = set()

    def greet(self, fd: int) -> None:
        """A member has spoken on this connection."""
        if fd not in self._members:
            self._members.add(fd)
            self._forget(fd)

    def count(self) -> tuple[int, int]:
        """Handshakes that failed, and connections that were sent away, since the last call.

        A caller that hangs up by itself has failed at nothing: launchers do so when they ask
        whether a port is still served, and when they run out of patience.
        """
        failed = refused = 0
        for event in islice(drain(self.socket), EVENTS_AT_ONCE):
            kind, value = struct.unpack("=HI", event[0])  # a descriptor, or why it failed
            if kind == zmq.EVENT_ACCEPTED:
                self._accept(value)
                if len(self._strangers) > self._most:
                    refused += 1
                    self._send_away()
            elif kind == zmq.EVENT_DISCONNECTED:
                self._members.discard(value)
                self._forget(value)
            elif (kind, value) not in HUNG_UP:
                failed += 1
        return failed, refused

    def _accept(self, fd: int) -> None:
        self._members.discard(fd)
        self._forget(fd)
        self._strangers[fd] = address = peer_of(fd)
        self._newest[_host(address)][fd] = None
        resend_soon(fd)

    def _forget(self, fd: int) -> None:
        address = self._strangers.pop(fd, None)
        if address is not None:
            host = _host(address)
            del self._newest[host][fd]
            if not self._newest[host]:
                del self._newest[host]

    def _send_away(self) -> None:
        newest = self._strangers[next(reversed(self._strangers))]
        # Of several the one of the newcomer.
        most = max(self._newest, key=lambda host: (len(self._newest[host]), host == _host(newest)))
        fd = next(reversed(self._newest[most]))
        if address := self._strangers[fd]:  # else it is gone already
            hang_up(fd, address)
        self._forget(fd)


def _host(address: str) -> str:
    """The host, or in IPv6 the network: any number of addresses there may be one host's."""
    if ":" not in address:
        return address
    return sockets.inet_pton(sockets.AF_INET6, address.partition("%")[0])[:8].hex()
