"""Frames between processes; with `sockets` the only file that knows ZeroMQ.

Launchers listen (`Router` to workers, `Hub` to each other) and connect (`Dealer`); one `Station`
waits for all of a launcher's sockets and file descriptors in one poll. A worker has a `WorkerLink`:
a control socket that one thread reads, an outbox that any thread writes, and one store socket for
each thread that calls the c10d store, so that no thread ever waits for a lock that another holds
while it waits.

Sockets are polled through ZeroMQ, never through their edge-triggered descriptor, and read until
they are empty. Sending never blocks: a full queue or an unreachable peer is a value, False.
"""

import itertools
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import zmq

from rendezvous.protocol.codec import LocalProtocolError, decode, encode
from rendezvous.protocol.messages import Message, StoreAnswer, StoreCall
from rendezvous.transport.admission import Admission, Refused
from rendezvous.transport.keys import JobKey
from rendezvous.transport.rate_limited_log import RateLimitedLog
from rendezvous.transport.sockets import (
    ANSWER_MS,
    BACKLOG,
    CALL_MS,
    FAILURES,
    PARTS,
    QUEUE,
    REMOTE_QUEUE,
    Bulk,
    Caller,
    Context,
    Door,
    Guests,
    Socket,
    bind,
    bound,
    bulk,
    drain,
    dress_listener,
    end,
    hang_up,
    keep_alive,
    monitor,
    origin,
    receive,
    receive_frames,
    send,
    serve,
    tcp,
)

__all__ = ["QUEUE", "Bulk", "Dealer", "Incoming", "Router", "Station", "WorkerLink", "bulk"]

FAREWELL_MS = 2000
"""How long the end of a process may wait for its last messages to leave."""

RESEND_AFTER_S = 5.0
"""A store call without an answer is sent again; the store tells a repetition by its serial."""

ELSEWHERE_AFTER_S = 2.0
"""Without a connection for so long, the peer is looked for at its next place."""

REFUSALS_AT_ONCE = 256
"""Messages of peers that may not speak, before those who may are heard again."""

ANSWER_MARGIN_S = 10.0
"""What an answer may take longer than the call's own timeout, before the caller gives up."""


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

    def send(self, peer: bytes, *frames: bytes) -> bool:
        """False if `peer` is not connected or does not read."""
        return send(self._socket, (peer, *frames))


class Hub:
    """A `Router` that other machines can reach: it hangs up on whoever it cannot believe."""

    def __init__(
        self, socket: Socket, guests: Guests, admission: Admission, log_lines: RateLimitedLog
    ) -> None:
        self._socket = socket
        self._guests = guests
        self._admission = admission
        self._rate_limited_log = log_lines

    def listen_also(self, address: str, port: int) -> None:
        """Be found at another place of this machine too, from now on at `port`. Raises OSError."""
        bind(self._socket, tcp(address, port))

    @property
    def port(self) -> int:
        """Where it listens, since last."""
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
                self._guests.greet(fd)
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

    def __init__(self, socket: Socket, listener: Socket, endpoints: Sequence[str]) -> None:
        self._socket = socket
        self._listener = listener
        self._endpoints = deque(endpoints)  # the first is in use
        self._given_up = False
        self._up = False
        self._down_since = time.monotonic()
        self._strangers = self._told = 0
        self._shaking = False
        self._met = False

    def met(self) -> bool:
        """Whether there is a connection that was not there at the last call."""
        met, self._met = self._met, False
        return met

    @property
    def up(self) -> bool:
        """Whether there is a connection, as far as has been read."""
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
        """How often in a row the other end accepted us, and then we did not come to terms."""
        return self._strangers

    def new_strangers(self) -> int:
        """The same if there was another one since the last call, else 0."""
        before, self._told = self._told, self._strangers
        return self._strangers if self._strangers > before else 0

    def receive(self) -> tuple[bytes, ...] | None:
        """The frames of the next message, or None if there is none now."""
        for event in drain(self._listener):
            self._note(struct.unpack("=H", event[0][:2])[0])
        return receive(self._socket)

    def _note(self, kind: int) -> None:
        if kind == zmq.EVENT_CONNECTED:
            self._shaking = True
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._shaking, self._strangers, self._met, self._up = False, 0, True, True
        elif self._shaking:  # What follows a failure is the end of the connection.
            self._shaking = False
            self._strangers += 1
            self._given_up = kind != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        elif self._up and kind == zmq.EVENT_DISCONNECTED:
            self._up, self._down_since = False, time.monotonic()

    def send(self, *frames: bytes | Bulk) -> bool:
        """False while there is no connection."""
        several = len(self._endpoints) > 1
        tired = several and not self._up and time.monotonic() - self._down_since > ELSEWHERE_AFTER_S
        if self._given_up or tired:
            self._given_up, self._down_since = False, time.monotonic()
            with suppress(zmq.ZMQError):  # It may have forgotten the endpoint by itself.
                self._socket.disconnect(self._endpoints[0])
            self._endpoints.rotate(-1)
            self._socket.connect(self._endpoints[0])
        return send(self._socket, frames)


class Station:
    """A launcher's sockets and descriptors, and the one place where it waits for them.

    With a key, all that goes over the network is encrypted, and nobody without the key is heard.
    """

    def __init__(self, key: JobKey | None = None) -> None:
        self._key = key
        self._context: Context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._owners: dict[object, Router | Hub | Dealer | int] = {}
        self._sockets: list[Socket] = []
        self._rate_limited_log = RateLimitedLog()
        self._admission = Admission(key)
        self._caller = Caller(key)
        self._guests: dict[Socket, Guests] = {}  # those who call us
        self._door = Door(self._context, self._admits)
        self._poller.register(self._door.socket, zmq.POLLIN)

    @property
    def incarnation(self) -> str:
        """This process's name for all time, which nobody else can prove to have."""
        return self._caller.incarnation

    def listen_ipc(self, path: str) -> Router:
        """Serve the workers of this node. Raises OSError."""
        socket = self._socket(zmq.ROUTER, path, QUEUE)
        serve(socket, f"ipc://{path}")
        router = Router(socket)
        self._watch(socket, router)
        return router

    def listen_tcp(self, address: str, port: int) -> Hub:
        """Serve other nodes on an address of this machine ("*": all). Raises OSError."""
        socket = self._socket(zmq.ROUTER, address, REMOTE_QUEUE)
        keep_alive(socket)
        socket.setsockopt(zmq.HANDSHAKE_IVL, ANSWER_MS)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self._key is not None:
            dress_listener(socket, self._key)
        serve(socket, tcp(address, port))
        guests = Guests(self._context, socket)
        self._guests[guests.socket] = guests
        self._poller.register(guests.socket, zmq.POLLIN)
        hub = Hub(socket, guests, self._admission, self._rate_limited_log)
        self._watch(socket, hub)
        return hub

    def connect_tcp(self, *places: tuple[str, int]) -> Dealer:
        """Connect to a peer that is at one of these hosts and ports, now or whenever it appears.

        Raises OSError for a malformed address.
        """
        hosts = [host for host, _ in places]
        socket = self._socket(zmq.DEALER, next((h for h in hosts if ":" in h), ""), REMOTE_QUEUE)
        keep_alive(socket)
        socket.setsockopt(zmq.HANDSHAKE_IVL, CALL_MS)
        self._caller.dress(socket)
        # Queue nothing for a peer that is not there: what we say is repeated, and must be fresh.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        listener = monitor(self._context, socket, Dealer.EVENTS)
        endpoints = [tcp(*place) for place in places]
        try:
            socket.connect(endpoints[0])
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        dealer = Dealer(socket, listener, endpoints)
        self._watch(socket, dealer)
        self._watch(listener, dealer)
        return dealer

    def drop(self, dealer: Dealer) -> None:
        """End a call, for good."""
        mine = [socket for socket, owner in self._owners.items() if owner is dealer]
        for socket in mine:
            self._poller.unregister(socket)
            del self._owners[socket]
        closed = dealer.close()
        self._sockets = [socket for socket in self._sockets if socket not in closed]

    def watch(self, fd: int) -> None:
        """Wake up when `fd` is readable."""
        self._poller.register(fd, zmq.POLLIN)
        self._owners[fd] = fd

    def unwatch(self, fd: int) -> None:
        self._poller.unregister(fd)
        del self._owners[fd]

    def wait(self, timeout_s: float) -> set[Router | Hub | Dealer | int]:
        """What is readable; empty after `timeout_s` seconds, or sooner."""
        # Rounded up: waking early would turn the rest of the time into a busy loop.
        ready = [item for item, _ in self._poller.poll(max(0, int(timeout_s * 1000 + 0.999)))]
        if self._door.socket in ready:
            now = time.monotonic()
            for address in self._door.answer():
                self._rate_limited_log.note(
                    f"a connection was refused: its key is ({address})", now
                )
        for item in self._guests.keys() & ready:
            self._count(self._guests[item])
        return {self._owners[item] for item in ready if item in self._owners}

    def log(self, words: str, now: float) -> None:
        """A message was refused by whoever read it."""
        self._rate_limited_log.note(f"a message was dropped: {words}", now)

    def log_lines(self, now: float) -> list[str]:
        """Sentences about those who do not behave; few, however many they are."""
        return self._rate_limited_log.due(now)

    def close(self) -> None:
        """Close everything; waits a bounded time until the last messages have left."""
        for socket in self._sockets:
            socket.disable_monitor()
            socket.close(linger=FAREWELL_MS)
        for socket in (*self._guests, self._door.socket):
            socket.close(linger=0)
        end(self._context, FAREWELL_MS)

    def _admits(self, user: str) -> bool:
        return self._admission.admits(user, time.monotonic())

    def _count(self, guests: Guests) -> None:
        wanted = "our key" if self._key is not None else "recoverrun"
        now = time.monotonic()
        failed, refused = guests.count()
        for _ in range(failed):
            self._rate_limited_log.note(f"a connection was closed: it did not speak {wanted}", now)
        for _ in range(refused):
            self._rate_limited_log.note(
                "a connection was closed: there are too many strangers", now
            )

    def _socket(self, kind: int, address: str, queue: int) -> Socket:
        socket = self._context.socket(kind)
        bound(socket, queue)
        # Only for an address of that family: a name is looked up in one family, and both ends
        # must choose the same.
        socket.setsockopt(zmq.IPV6, int(address.startswith("[") or address.count(":") > 1))
        return socket

    def _watch(self, socket: Socket, owner: Router | Hub | Dealer) -> None:
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
            return self._open and self._here() and send(self._outbox, (frame,))

    def receive(self, timeout_s: float) -> Message | None:
        """The next message for this worker, or None. Only one thread may call this.

        Raises RemoteProtocolError if the launcher sends what is no message.
        """
        if not self._control.poll(int(timeout_s * 1000)):
            return None
        frames = receive(self._control)
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
            send(socket, (frame,))
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
                end(self._outbox_context, FAREWELL_MS)
            self._open = False

    def _answer(self, socket: Socket, serial: int, until: float) -> StoreAnswer | None:
        while (left_s := until - time.monotonic()) > 0:
            if not socket.poll(int(left_s * 1000) + 1):
                return None
            for frames in drain(socket):
                answer = decode(frames[-1])
                # Others are answers that came after their caller had given up.
                if isinstance(answer, StoreAnswer) and answer.serial == serial:
                    return answer
        return None

    def _store_socket(self) -> Socket:
        if not self._here():
            raise LocalProtocolError("a forked child cannot use its parent's store")
        socket: Socket | None = getattr(self._local, "socket", None)
        if socket is None:
            socket = self._connect(self._context, f"s{self._name}.{next(self._threads)}")
            self._local.socket = socket
        return socket

    def _here(self) -> bool:
        """A fork copies this object, but not the threads that move its frames."""
        return os.getpid() == self._pid

    def _connect(self, context: Context, name: str) -> Socket:
        socket = context.socket(zmq.DEALER)
        bound(socket)
        socket.setsockopt(zmq.IDENTITY, name.encode())
        try:
            socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise LocalProtocolError(f"{self._endpoint!r} is no address: {error}") from error
        return socket
