"""ZeroMQ's sockets as we use them: bounded, never blocking, encrypted where the network is.

`station` builds on this; no other file knows ZeroMQ. Handshakes are judged in the launcher's own
loop: the `ZapHandler` is the socket that ZeroMQ asks, polled like any other.
"""

import errno
import itertools
import os
import socket as sockets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import zmq
from zmq.utils import z85

from rendezvous.protocol.codec import FRAME_BYTES
from rendezvous.protocol.side_threads import begin_thread
from rendezvous.transport.keys import PUBLIC_BYTES, JobKey, incarnation_of

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

PARTS = 8
"""Frames of one message. ZeroMQ bounds the size of a frame only."""

PARTS_ASKED = 16
"""The same for a question about a handshake."""

QUEUE = 10_000
"""Messages to or from one peer that may wait. Beyond that the peer is as good as dead."""

REMOTE_QUEUE = 1000
"""The same for what comes from another machine: it may be large, and its sender can wait."""

CALL_MS, ANSWER_MS = 2000, 4000
"""A handshake's time for the one who calls, and for the one who listens. The caller gives up first,
so that a busy listener is not taken for one that hangs up."""

HALF_OPEN_S, PROBES, PROBE_S = 5, 3, 2
"""A connection on which nothing was heard or acknowledged for so long is half-open, perhaps. The
kernel finds that out: whoever may lead has thousands of connections that carry nothing else, and
ZeroMQ's own heartbeats cost more there than all that is said.
"""

RESENT_MS = 1000
"""The kernel waits so long at most before it sends again what was not acknowledged, so that a
connection comes back soon after its link. It takes no shorter bound."""

TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS = 16, 44
"""Of Linux; Python does not name them. The second came with Linux 6.15."""

BACKLOG = 100
"""Connections that the kernel keeps until we accept them. Of those beyond it the first word is
lost, and said again after a second, then after three, seven ... More would help thousands that call
at once, and let a stranger keep our thread busy with connections that there is no descriptor for.
"""

FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Handshakes that came to nothing."""

END_S = 1.0
"""What the end of a context may take, beyond the time that its sockets linger."""

DOMAIN = b"recoverrun"
"""ZeroMQ asks about a handshake only where a socket names a domain."""

_ZAP = "inproc://zeromq.zap.01"
_monitors = itertools.count()


def can_encrypt() -> bool:
    """True if this ZeroMQ was built with what a key needs."""
    return bool(zmq.has("curve"))


class ClientIdentity:
    """The key pair and the name with which this process calls others, made anew for each."""

    def __init__(self, key: JobKey | None) -> None:
        public, secret = zmq.curve_keypair() if key is not None else (b"", b"")
        self._secret = secret
        self._public = public
        self.incarnation = incarnation_of(z85.decode(public) if public else os.urandom(32))
        own = self.incarnation.encode()
        self._routing_id = own if key is None else key.routing_id(z85.decode(public))
        self._listener = listener_public(key) if key is not None else b""

    def set_identity(self, socket: Socket) -> None:
        """Have a socket that is about to connect use this name and key."""
        socket.setsockopt(zmq.IDENTITY, self._routing_id)
        if self._public:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._listener)


def listener_public(key: JobKey) -> bytes:
    """The public half of the pair with which every launcher of the job listens, as Z85."""
    return zmq.curve_public(z85.encode(key.listener_secret()))


def demand_key(socket: Socket, key: JobKey) -> None:
    """Have a socket that is about to listen demand the job's key."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(key.listener_secret()))
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)


class ZapHandler:
    """Answers ZeroMQ's question whether the owner of a public key may connect (ZAP, RFC 27)."""

    def __init__(self, context: Context, admits: Callable[[str], bool]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP)
        self._admits = admits

    def answer(self) -> list[str]:
        """Answer all who wait; the addresses of those who were refused."""
        refused = []
        for frames in drain(self.socket, most=PARTS_ASKED):
            envelope, request = frames[:2], frames[2:]
            if len(request) < 7:
                continue
            version, serial, domain, address, _, mechanism, public = request[:7]
            user = public.hex()
            known = (version, domain, mechanism) == (b"1.0", DOMAIN, b"CURVE")
            if known and len(public) == PUBLIC_BYTES and self._admits(user):
                verdict = (b"200", b"", user.encode(), b"")
            else:
                verdict = (b"400", b"", b"", b"")
                refused.append(address.decode("ascii", "replace"))
            send(self.socket, (*envelope, version, serial, *verdict))
        return refused


def tcp(host: str, port: int) -> str:
    """ZeroMQ's name of this place."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def bind(socket: Socket, endpoint: str) -> None:
    """Raises OSError."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(error.errno, error.strerror) from error


def serve(socket: Socket, endpoint: str) -> None:
    """Have a socket listen that knows its peers by name. Raises OSError: then it is closed."""
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        bind(socket, endpoint)
    except OSError:
        socket.close(linger=0)
        raise


def bound(socket: Socket, received: int = QUEUE) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.RCVHWM, received)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)


def keep_alive(socket: Socket) -> None:
    """Have a half-open connection end by itself, without a word of ours."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, HALF_OPEN_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, PROBE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, PROBES)
    socket.setsockopt(zmq.TCP_MAXRT, 1000 * HALF_OPEN_S)


def monitor(context: Context, socket: Socket, events: int) -> Socket:
    """A socket that tells what happens to the connections of another one."""
    address = f"inproc://monitor.{next(_monitors)}"
    socket.monitor(address, events)
    listener = context.socket(zmq.PAIR)
    # Without a bound: ZeroMQ's own thread would wait for room in it, and with it all connections.
    listener.setsockopt(zmq.RCVHWM, 0)
    listener.setsockopt(zmq.LINGER, 0)
    listener.connect(address)
    return listener


def end(context: Context, linger_ms: int) -> bool:
    """Wait until the last messages of closed sockets have left; False if ZeroMQ does not say so.

    It may wait for ever: a socket that is closed while a handshake is judged need not come to its
    end (libzmq, issue 2733). Then it is left to the end of the process.
    """
    ends = begin_thread("recoverrun-end", context.term)
    if ends is None:
        return False
    ends.join(linger_ms / 1000 + END_S)
    return not ends.is_alive()


def drain(socket: Socket, most: int = PARTS) -> Iterable[tuple[bytes, ...]]:
    while (frames := receive(socket, most)) is not None:
        yield frames


def receive(socket: Socket, most: int = PARTS) -> tuple[bytes, ...] | None:
    """The next message of a sane number of parts, or None if there is none now."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if len(frames) <= most:
            return tuple(frames)


def receive_views(socket: Socket) -> tuple[memoryview, ...] | None:
    """The same as `receive`, where it lies in ZeroMQ's memory."""
    while (frames := receive_frames(socket)) is not None:
        if len(frames) <= PARTS:
            return tuple(frame.buffer for frame in frames)
    return None


def receive_frames(socket: Socket) -> list[zmq.Frame] | None:
    """The first parts of the next message, at most one more than allowed, with their origin."""
    try:
        frames = [socket.recv(zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None
    last = frames[0]
    while last.more:
        last = socket.recv(zmq.NOBLOCK, copy=False)
        if len(frames) <= PARTS:
            frames.append(last)
    return frames


def origin(frame: zmq.Frame) -> tuple[str, str, int]:
    """(user, address, descriptor) of the connection that a frame came from."""
    # An IPv6 socket names its IPv4 peers in a way that no other program understands.
    address = _property(frame, "Peer-Address").removeprefix("::ffff:")
    return _property(frame, "User-Id"), address, int(frame.get(zmq.SRCFD))


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""  # There is no user without a key.


_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""As numbers: to combine them anew as flags costs half of what it takes to send a frame."""

Bulk = zmq.Frame
"""A frame that goes to many: ZeroMQ holds it once, however many queues it waits in."""


def bulk(frame: bytes) -> Bulk:
    # A copy of ZeroMQ's own: borrowed memory would have to be given back by another thread.
    return zmq.Frame(frame, copy=True)


def send(socket: Socket, frames: Sequence[bytes | Bulk]) -> bool:
    """False if there is no such peer, or its queue is full."""
    try:
        for frame in frames[:-1]:
            socket.send(frame, _MORE, copy=not isinstance(frame, Bulk))
        socket.send(frames[-1], _LAST, copy=not isinstance(frames[-1], Bulk))
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False
        raise
    return True


def resend_soon(fd: int) -> None:
    """Have the kernel send again soon what is lost on a connection of ZeroMQ's.

    It doubles its wait with each loss: after 3 s without a link it may send nothing for 3 s more.
    Where it takes no bound it waits longer only from the seventh loss on, if little is on its way.
    """
    try:
        with closing(sockets.socket(fileno=os.dup(fd))) as connection:
            connection.setsockopt(sockets.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
            connection.setsockopt(sockets.IPPROTO_TCP, TCP_RTO_MAX_MS, RESENT_MS)
    except OSError:
        pass  # It is gone already, or this kernel does not know the bound.


def peer_of(fd: int) -> str:
    """The address from which a connection of ZeroMQ's came; "" if it is gone already."""
    try:
        with closing(sockets.socket(fileno=os.dup(fd))) as connection:
            return _address(connection)
    except OSError:
        return ""


def _address(connection: sockets.socket) -> str:
    if connection.family not in (sockets.AF_INET, sockets.AF_INET6):
        return ""
    return str(connection.getpeername()[0]).removeprefix("::ffff:")


def hang_up(fd: int, address: str = "") -> None:
    """End a connection of ZeroMQ's, which has no call for that, if `fd` still leads to `address`.

    The copy pins the connection: ZeroMQ may close its own descriptor at any time, and what is then
    opened under its number is no connection that was accepted, or one that will call again.
    """
    try:
        with closing(sockets.socket(fileno=os.dup(fd))) as connection:
            peer = _address(connection)
            if peer and address in ("", peer):
                connection.shutdown(sockets.SHUT_RDWR)
    except OSError:
        pass  # It is gone already.
