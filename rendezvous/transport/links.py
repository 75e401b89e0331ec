"""Links of a launcher: sockets that listen to workers or launchers, and calls to one listener."""

import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import zmq

from rendezvous.transport.admission import Admission, Refused
from rendezvous.transport.listener_connections import ListenerConnections
from rendezvous.transport.rate_limited_log import RateLimitedLog
from rendezvous.transport.sockets import (
    FAILURES,
    PARTS,
    Bulk,
    Socket,
    bind,
    drain,
    hang_up,
    origin,
    receive,
    receive_frames,
    receive_views,
    resend_soon,
    send,
    tcp,
)

ELSEWHERE_AFTER_S = 2.0
"""Without a connection for so long, the peer is looked for at its next place."""


REFUSALS_AT_ONCE = 256
"""Messages of peers that may not speak, before those who may are heard again."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message at a `Router`.

    `sender` is the identity that the peer chose; at one that other machines reach, with a key, it
    is the incarnation that the peer's own key proves. `address` is where it came from, "" for ipc.
    """

    sender: bytes
    frames: tuple[bytes, ...]
    address: str = ""


class Router:
    """A listening socket that tells its peers apart by identity."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    def receive(self) -> Incoming | None:
        """The next message, or None if there is none now."""
        frames = receive(self._socket)
        return None if frames is None else Incoming(frames[0], frames[1:])

    def wait(self, within_s: float) -> bool:
        """Wait for a message, so long at most. True if there is one."""
        return bool(self._socket.poll(round(1000 * within_s)))

    def send(self, peer: bytes, *frames: bytes) -> bool:
        """False if `peer` is not connected or does not read."""
        return send(self._socket, (peer, *frames))

    def listen_also(self, path: str) -> None:
        """Be found there, too: also where it was found before, and is no more. Raises OSError."""
        bind(self._socket, f"ipc://{path}")


class Hub:
    """A `Router` that other machines can reach: it hangs up on whoever it cannot believe."""

    def __init__(
        self,
        socket: Socket,
        connections: ListenerConnections,
        admission: Admission,
        rate_limited_log: RateLimitedLog,
    ) -> None:
        self._socket = socket
        self._connections = connections
        self._admission = admission
        self._rate_limited_log = rate_limited_log
        self.port = self._last_port()
        """The port at which others are told to call it."""

    def listen_also(self, address: str, port: int) -> None:
        """Be found at another place of this machine too, from now on at `port`. Raises OSError."""
        bind(self._socket, tcp(address, port))
        self.port = self._last_port()

    def answer_also(self, address: str, port: int) -> bool:
        """Be found at another place as well; others are told of `port` as before. False if another
        program has it.
        """
        try:
            bind(self._socket, tcp(address, port))
        except OSError:
            return False
        return True

    def _last_port(self) -> int:
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return int(endpoint.strip("\0").rpartition(":")[2])

    def receive(self) -> Incoming | None:
        """The next message of a peer that may speak, or None if there is none now."""
        for _ in range(REFUSALS_AT_ONCE):
            frames = receive_frames(self._socket)
            if frames is None:
                return None
            now = time.monotonic()
            sender = frames[0].bytes
            user, address, fd = origin(frames[0])
            parts = tuple(frame.bytes for frame in frames[1:])
            size = sum(map(len, parts))
            heard: bytes | Refused = Refused(f"a peer sent a message of more than {PARTS} parts")
            if len(frames) <= PARTS:
                heard = self._admission.hear(sender, user, size, now)
            if not isinstance(heard, Refused):
                self._connections.greet(fd)
                return Incoming(heard, parts, address)
            hang_up(fd, address)
            self._rate_limited_log.note(f"{heard.words} ({address})", now)
        return None

    def send(self, peer: bytes, *frames: bytes | Bulk) -> bool:
        """False if `peer` is not connected or does not read."""
        return send(self._socket, (self._admission.routing_id(peer), *frames))

    def revoke(self, peer: bytes) -> None:
        """Hear nothing more of `peer`; its connection ends with its next word. Needs a key."""
        self._admission.revoke(peer)

    def pardon(self, peer: bytes) -> None:
        self._admission.pardon(peer)


class Dealer:
    """A connection to one listening peer, renewed as often as it breaks.

    ZeroMQ does that, except where the other end has refused us in so many words: then we call again
    when there is something to say. The peer may be found at one of several places; they are tried
    one after the other, because two connections to one peer would share what is sent between them.
    """

    EVENTS = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | FAILURES

    def __init__(
        self, socket: Socket, listener: Socket, endpoints: Sequence[str], *, keeps: bool = False
    ) -> None:
        """`keeps`: the socket would keep what is said while there is no connection."""
        self._socket = socket
        self._listener = listener
        self._keeps = keeps
        self._endpoints = deque(endpoints)  # the first is in use
        self._given_up = False
        self._up = False
        self._down_since = time.monotonic()
        self._strangers = self._told = 0
        self._shaking = False
        self._met = False

    def met(self) -> bool:
        """True if there is a connection that was not there at the last call."""
        met, self._met = self._met, False
        return met

    @property
    def up(self) -> bool:
        """True if there is a connection, as far as has been read."""
        return self._up

    @property
    def place(self) -> tuple[str, int]:
        """The host and port that is called, or was called last."""
        host, _, port = self._endpoints[0].removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), int(port)

    def close(self) -> tuple[Socket, Socket]:
        """End the call, for good; the sockets that are closed by that."""
        self._socket.disable_monitor()
        self._socket.close(linger=0)
        self._listener.close(linger=0)
        return self._socket, self._listener

    @property
    def strangers(self) -> int:
        """The number of times in a row that the other end accepted us, and we did not come to
        terms.
        """
        return self._strangers

    def new_strangers(self) -> int:
        """The same if there was another one since the last call, else 0."""
        before, self._told = self._told, self._strangers
        return self._strangers if self._strangers > before else 0

    def receive(self) -> tuple[bytes, ...] | None:
        """The frames of the next message, or None if there is none now."""
        self._hear_events()
        return receive(self._socket)

    def receive_views(self) -> tuple[memoryview, ...] | None:
        """The same, where it lies in ZeroMQ's memory: for frames of megabytes."""
        self._hear_events()
        return receive_views(self._socket)

    def _hear_events(self) -> None:
        for event in drain(self._listener):
            self._note(*struct.unpack("=HI", event[0]))

    def _note(self, kind: int, value: int) -> None:
        if kind == zmq.EVENT_CONNECTED:
            self._shaking = True
            resend_soon(value)  # here it is the descriptor
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._shaking, self._strangers, self._met, self._up = False, 0, True, True
        elif self._shaking:  # The end of the connection follows a failure.
            self._shaking = False
            self._strangers += 1
            self._given_up = kind != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        elif self._up and kind == zmq.EVENT_DISCONNECTED:
            self._up, self._down_since = False, time.monotonic()

    def send(self, *frames: bytes | Bulk) -> bool:
        """False while there is no connection."""
        self.call_again()
        return (self._up or not self._keeps) and send(self._socket, frames)

    def call_again(self) -> None:
        """Call anew where the other end has refused us, and elsewhere where it is long silent."""
        several = len(self._endpoints) > 1
        tired = several and not self._up and time.monotonic() - self._down_since > ELSEWHERE_AFTER_S
        if self._given_up or tired:
            self._given_up, self._down_since = False, time.monotonic()
            with suppress(zmq.ZMQError):  # It may have forgotten the endpoint by itself.
                self._socket.disconnect(self._endpoints[0])
            self._endpoints.rotate(-1)
            self._socket.connect(self._endpoints[0])
