"""The sockets and file descriptors of one launcher, waited for in one poll.

Launchers listen (`Router` to workers, `Hub` to each other) and connect (`Dealer`), see `links`. The
files `sockets`, `links`, `worker_link` and this one are the only ones that know ZeroMQ. Sockets are
polled through it, never through their edge-triggered descriptor, and read until they are empty.
Sending never blocks: a full queue or an unreachable peer is a value, False.
"""

import time

import zmq

from rendezvous.transport.admission import Admission
from rendezvous.transport.keys import JobKey
from rendezvous.transport.links import Dealer, Hub, Router
from rendezvous.transport.listener_connections import ListenerConnections
from rendezvous.transport.rate_limited_log import RateLimitedLog
from rendezvous.transport.sockets import (
    ANSWER_MS,
    BACKLOG,
    CALL_MS,
    QUEUE,
    REMOTE_QUEUE,
    ClientIdentity,
    Context,
    Socket,
    ZapHandler,
    bound,
    demand_key,
    end,
    keep_alive,
    monitor,
    serve,
    tcp,
)

FAREWELL_MS = 2000
"""How long the end of a process may wait for its last messages to leave."""


class Station:
    """A launcher's sockets and descriptors, and the one place where it waits for them.

    With a key, all that goes over the network is encrypted, and nobody without the key is heard.
    """

    def __init__(self, key: JobKey | None = None) -> None:
        """Raises OSError where the system gives no descriptors."""
        self._key = key
        self._context: Context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._owners: dict[object, Router | Hub | Dealer | int] = {}
        self._sockets: list[Socket] = []
        self._rate_limited_log = RateLimitedLog()
        self._admission = Admission(key)
        self._caller = ClientIdentity(key)
        self._connections: dict[Socket, ListenerConnections] = {}  # those who call us
        try:
            self._door = ZapHandler(self._context, self._admits)
        except zmq.ZMQError as error:  # ZeroMQ takes its first descriptors here.
            raise OSError(error.errno, error.strerror) from error
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
            demand_key(socket, self._key)
        serve(socket, tcp(address, port))
        connections = ListenerConnections(self._context, socket)
        self._connections[connections.socket] = connections
        self._poller.register(connections.socket, zmq.POLLIN)
        hub = Hub(socket, connections, self._admission, self._rate_limited_log)
        self._watch(socket, hub)
        return hub

    def connect_tcp(
        self, *places: tuple[str, int], apart: bool = False, keeps: bool = False
    ) -> Dealer:
        """Connect to a peer that is at one of these hosts and ports, now or whenever it appears.

        `apart`: under a name of its own, since nobody hears a second call under one name. `keeps`:
        what came before a connection broke can be read after that. Raises OSError for a malformed
        address.
        """
        hosts = [host for host, _ in places]
        socket = self._socket(zmq.DEALER, next((h for h in hosts if ":" in h), ""), REMOTE_QUEUE)
        keep_alive(socket)
        socket.setsockopt(zmq.HANDSHAKE_IVL, CALL_MS)
        (ClientIdentity(self._key) if apart else self._caller).set_identity(socket)
        # Queue nothing for a peer that is not there: what we say is repeated, and must be fresh.
        socket.setsockopt(zmq.IMMEDIATE, int(not keeps))
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        listener = monitor(self._context, socket, Dealer.EVENTS)
        endpoints = [tcp(*place) for place in places]
        try:
            socket.connect(endpoints[0])
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        dealer = Dealer(socket, listener, endpoints, keeps=keeps)
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
        """The readable sockets; empty after `timeout_s` seconds, or sooner."""
        # Rounded up: waking early would turn the rest of the time into a busy loop.
        ready = [item for item, _ in self._poller.poll(max(0, int(timeout_s * 1000 + 0.999)))]
        if self._door.socket in ready:
            now = time.monotonic()
            for address in self._door.answer():
                self._rate_limited_log.note(
                    f"a connection was refused: its key is ({address})", now
                )
        for item in self._connections.keys() & ready:
            self._count(self._connections[item])
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
        for socket in (*self._connections, self._door.socket):
            socket.close(linger=0)
        end(self._context, FAREWELL_MS)

    def _admits(self, user: str) -> bool:
        return self._admission.admits(user, time.monotonic())

    def _count(self, connections: ListenerConnections) -> None:
        wanted = "our key" if self._key is not None else "recoverrun"
        now = time.monotonic()
        failed, refused = connections.count()
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
