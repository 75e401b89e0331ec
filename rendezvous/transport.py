"""Frames between processes: the only file that knows ZeroMQ.

Launchers listen (`Router`) and connect to each other (`Dealer`); one `Station` waits for all of a
launcher's sockets and file descriptors in one poll. A worker has a `WorkerLink`: a control socket
that one thread reads, an outbox that any thread writes, and one store socket for each thread that
calls the c10d store, so that no thread ever waits for a lock that another holds while it waits.

Sockets are polled through ZeroMQ, never through their edge-triggered descriptor, and read until
they are empty. Sending never blocks: a full queue or an unreachable peer is a value, False.
"""

import errno
import itertools
import os
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import zmq

from rendezvous.messages import Message, StoreAnswer, StoreCall
from rendezvous.wire import FRAME_BYTES, LocalProtocolError, decode, encode

PARTS = 8
"""Frames of one message. ZeroMQ bounds the size of a frame only."""

QUEUE = 10_000
"""Messages to or from one peer that may wait. Beyond that the peer is as good as dead."""

HANDSHAKE_MS = 2000
FAREWELL_MS = 2000
"""How long the end of a process may wait for its last messages to leave."""

RESEND_AFTER_S = 5.0
"""A store call without an answer is sent again; the store tells a repetition by its serial."""

ANSWER_MARGIN_S = 10.0
"""What an answer may take longer than the call's own timeout, before the caller gives up."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message at a `Router`; `sender` is the identity that the peer chose."""

    sender: bytes
    frames: tuple[bytes, ...]


class Router:
    """A listening socket that tells its peers apart by identity."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket

    def receive(self) -> Incoming | None:
        """The next message, or None if there is none now."""
        frames = _receive(self._socket)
        return None if frames is None else Incoming(frames[0], frames[1:])

    def send(self, peer: bytes, *frames: bytes) -> bool:
        """False if `peer` is not connected or does not read."""
        return _send(self._socket, (peer, *frames))


class Dealer:
    """A connection to one listening peer, renewed by ZeroMQ as often as it breaks."""

    def __init__(self, socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._monitor = monitor
        self._strangers = 0
        self._met = False

    def met(self) -> bool:
        """Whether there is a connection that was not there at the last call."""
        met, self._met = self._met, False
        return met

    @property
    def strangers(self) -> int:
        """How often in a row the other end accepted us and did not speak our protocol."""
        return self._strangers

    def receive(self) -> tuple[bytes, ...] | None:
        """The frames of the next message, or None if there is none now."""
        for event in _drain(self._monitor):
            kind = struct.unpack("=H", event[0][:2])[0]
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._strangers, self._met = 0, True
            else:
                self._strangers += 1
        return _receive(self._socket)

    def send(self, *frames: bytes) -> bool:
        """False while there is no connection."""
        return _send(self._socket, frames)


class Station:
    """A launcher's sockets and descriptors, and the one place where it waits for them."""

    def __init__(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._owners: dict[object, Router | Dealer | int] = {}
        self._sockets: list[zmq.Socket[bytes]] = []

    def listen_ipc(self, path: str) -> Router:
        """Serve the workers of this node. Raises OSError."""
        return self._listen("ipc", path)

    def listen_tcp(self, address: str, port: int) -> Router:
        """Serve other nodes on an address of this machine ("*": all). Raises OSError."""
        return self._listen("tcp", f"{_bracketed(address)}:{port}")

    def connect_tcp(self, host: str, port: int, identity: bytes) -> Dealer:
        """Connect, now or whenever the peer appears. Raises OSError for a malformed address."""
        socket = self._socket(zmq.DEALER, host)
        socket.setsockopt(zmq.IDENTITY, identity)
        # Queue nothing for a peer that is not there: what we say is repeated, and must be fresh.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        failures = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | failures | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        try:
            socket.connect(f"tcp://{_bracketed(host)}:{port}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        dealer = Dealer(socket, monitor)
        self._watch(socket, dealer)
        self._watch(monitor, dealer)
        return dealer

    def watch(self, fd: int) -> None:
        """Wake up when `fd` is readable."""
        self._poller.register(fd, zmq.POLLIN)
        self._owners[fd] = fd

    def unwatch(self, fd: int) -> None:
        self._poller.unregister(fd)
        del self._owners[fd]

    def wait(self, timeout_s: float) -> set[Router | Dealer | int]:
        """What is readable; empty after `timeout_s` seconds."""
        # Rounded up: waking early would turn the rest of the time into a busy loop.
        ready = self._poller.poll(max(0, int(timeout_s * 1000 + 0.999)))
        return {self._owners[item] for item, _events in ready}

    def close(self) -> None:
        """Close everything; waits a bounded time until the last messages have left."""
        for socket in self._sockets:
            socket.disable_monitor()
            socket.close(linger=FAREWELL_MS)
        self._context.term()

    def _listen(self, scheme: str, address: str) -> Router:
        socket = self._socket(zmq.ROUTER, address)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            socket.bind(f"{scheme}://{address}")
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise OSError(error.errno, error.strerror) from error
        router = Router(socket)
        self._watch(socket, router)
        return router

    def _socket(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        _bound(socket)
        # Only for an address of that family: a name is looked up in one family, and both ends
        # must choose the same.
        socket.setsockopt(zmq.IPV6, int(address.startswith("[") or address.count(":") > 1))
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        # A half-open connection is found by ZeroMQ's own thread, even while Python is busy.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
        return socket

    def _watch(self, socket: "zmq.Socket[bytes]", owner: Router | Dealer) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._owners[socket] = owner
        self._sockets.append(socket)


class WorkerLink:
    """A worker's connections to the launcher of its node."""

    def __init__(self, endpoint: str, rank: int, incarnation: int) -> None:
        """Connect to `endpoint`. Raises LocalProtocolError if that is no address."""
        self._endpoint = endpoint
        self._name = f"{rank}.{incarnation}"
        self._rank = rank
        self._pid = os.getpid()
        # The serials of a rank's processes never meet: the store remembers what it answered.
        self._serials = itertools.count(incarnation << 40)
        self._threads = itertools.count()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open = True
        self._context = zmq.Context(io_threads=1)
        # A context of its own: only this one is waited for at the end, because a thread that is
        # still reading the other sockets would hold up that wait.
        self._outbox_context = zmq.Context(io_threads=1)
        self._control = self._connect(self._context, f"c{self._name}")
        self._outbox = self._connect(self._outbox_context, f"o{self._name}")
        self._control.send(b"")  # From now on the launcher can reach us.

    def send(self, message: Message) -> bool:
        """Send towards the coordinator, from any thread. False if the launcher does not read."""
        frame = encode(message)
        with self._lock:
            return self._open and self._here() and _send(self._outbox, (frame,))

    def receive(self, timeout_s: float) -> Message | None:
        """The next message for this worker, or None. Only one thread may call this.

        Raises RemoteProtocolError if the launcher sends what is no message.
        """
        if not self._control.poll(int(timeout_s * 1000)):
            return None
        frames = _receive(self._control)
        return None if frames is None else decode(frames[-1])

    def call(self, call: StoreCall, timeout_s: float) -> StoreAnswer:
        """Have the store carry out `call` and wait for its answer, from any thread.

        The serial is chosen here, that in `call` is ignored. Without an answer in time the status
        is "timeout", as if the store had said so; `values[0]` then is a sentence.
        """
        socket = self._store_socket()
        call = replace(call, serial=next(self._serials), timeout_s=timeout_s)
        frame = encode(call)
        give_up_at = time.monotonic() + timeout_s + ANSWER_MARGIN_S
        while (now := time.monotonic()) < give_up_at:
            _send(socket, (frame,))
            answer = self._answer(socket, call.serial, min(now + RESEND_AFTER_S, give_up_at))
            if answer is not None:
                return answer
        words = f"the store did not answer {call.op} within {timeout_s + ANSWER_MARGIN_S:.1f} s"
        return StoreAnswer(
            rank=self._rank,
            serial=call.serial,
            status="timeout",
            values=(words.encode(),),
            number=0,
        )

    def close(self) -> None:
        """Wait a bounded time until all that was sent has left. Nothing can be sent afterwards."""
        with self._lock:
            if self._open and self._here():
                self._outbox.close(linger=FAREWELL_MS)
                self._outbox_context.term()
            self._open = False

    def _answer(self, socket: "zmq.Socket[bytes]", serial: int, until: float) -> StoreAnswer | None:
        while (left_s := until - time.monotonic()) > 0:
            if not socket.poll(int(left_s * 1000) + 1):
                return None
            for frames in _drain(socket):
                answer = decode(frames[-1])
                # Others are answers that came after their caller had given up.
                if isinstance(answer, StoreAnswer) and answer.serial == serial:
                    return answer
        return None

    def _store_socket(self) -> "zmq.Socket[bytes]":
        if not self._here():
            raise LocalProtocolError("a forked child cannot use its parent's store")
        socket: zmq.Socket[bytes] | None = getattr(self._local, "socket", None)
        if socket is None:
            socket = self._connect(self._context, f"s{self._name}.{next(self._threads)}")
            self._local.socket = socket
        return socket

    def _here(self) -> bool:
        """A fork copies this object, but not the threads that move its frames."""
        return os.getpid() == self._pid

    def _connect(self, context: "zmq.Context[zmq.Socket[bytes]]", name: str) -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.DEALER)
        _bound(socket)
        socket.setsockopt(zmq.IDENTITY, name.encode())
        try:
            socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise LocalProtocolError(f"{self._endpoint!r} is no address: {error}") from error
        return socket


def _bound(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.RCVHWM, QUEUE)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _drain(socket: "zmq.Socket[bytes]") -> Iterable[tuple[bytes, ...]]:
    while (frames := _receive(socket)) is not None:
        yield frames


def _receive(socket: "zmq.Socket[bytes]") -> tuple[bytes, ...] | None:
    """The next message of a sane number of parts, or None if there is none now."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if len(frames) <= PARTS:
            return tuple(frames)


def _send(socket: "zmq.Socket[bytes]", frames: Iterable[bytes]) -> bool:
    try:
        socket.send_multipart(tuple(frames), zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False
        raise
    return True
