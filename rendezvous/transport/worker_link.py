"""The link of a worker to its launcher.

A control socket that one thread reads, an outbox that any thread writes, and one store socket for
each thread that calls the c10d store, so that no thread ever waits for a lock that another holds
while it waits.
"""

import itertools
import os
import threading
import time
from dataclasses import replace

import zmq

from rendezvous.protocol.codec import LocalProtocolError, decode, encode
from rendezvous.protocol.messages import Message
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.transport.sockets import (
    Context,
    Socket,
    bound,
    drain,
    end,
    receive,
    send,
)
from rendezvous.transport.station import FAREWELL_MS

RESEND_AFTER_S = 5.0
"""A store call without an answer is sent again; the store tells a repetition by its serial."""


ANSWER_MARGIN_S = 10.0
"""What an answer may take longer than the call's own timeout, before the caller gives up."""


CONNECT_S = 2.0
"""The most that a connection made ahead is waited for, beside what an answer may be late."""


SERIAL_BITS = 32
"""A process has so many serials of its own; the rest of the number says which process it is."""


class OwnSocket(zmq.Socket[bytes]):
    """A socket that goes with the thread that made it, or with the process.

    Only that thread may close it, and nothing tells a thread that it ends. zmq closes such a
    socket, too, but warns of it: with `-W error` on the script's screen.
    """

    def __del__(self) -> None:
        if not self.closed:
            self.close()


class _Held:
    """The store socket of one thread. One from the `reserve` goes back there with the thread."""

    __slots__ = ("_reserve", "socket")

    def __init__(self, socket: Socket, reserve: list[Socket] | None = None) -> None:
        self.socket = socket
        self._reserve = reserve

    def __del__(self) -> None:
        if self._reserve is not None:
            self._reserve.append(self.socket)


class WorkerLink:
    """A worker's connections to the launcher of its node."""

    def __init__(self, endpoint: str, rank: int, incarnation: int) -> None:
        """Connect to `endpoint`. Raises LocalProtocolError if that is no address."""
        self._endpoint = endpoint
        self._name = f"{rank}.{incarnation}"
        self._rank = rank
        self._pid = os.getpid()
        # The serials of a rank's processes never meet: the store remembers what it answered.
        self._serials = itertools.count(incarnation << SERIAL_BITS)
        self._threads = itertools.count()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._reserve: list[Socket] = []
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
        return self._ask(self._store_socket(), call, timeout_s)

    def connect_ahead(self, sockets: int) -> None:
        """Connect for so many threads that will call the store at a time, also if this process may
        not connect any more by then. Waits a bounded time for each.
        """
        nothing = StoreCall(
            rank=self._rank, serial=0, generation=0, op="check", keys=(), values=(), amount=0,
            timeout_s=CONNECT_S,
        )  # fmt: skip
        for _ in range(sockets - len(self._reserve)):
            socket = self._connect_store()
            self._ask(socket, nothing, CONNECT_S)  # ZeroMQ connects in a thread of its own
            self._reserve.append(socket)

    def _ask(self, socket: Socket, call: StoreCall, timeout_s: float) -> StoreAnswer:
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

    def flush(self) -> None:
        """Wait a bounded time until all that was sent has left."""
        with self._lock:
            if self._open and self._here():
                self._outbox.close(linger=FAREWELL_MS)
                end(self._outbox_context, FAREWELL_MS)
                self._outbox_context = zmq.Context(io_threads=1)
                name = f"o{self._name}.{next(self._threads)}"
                self._outbox = self._connect(self._outbox_context, name)

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
        held: _Held | None = getattr(self._local, "held", None)
        if held is None:
            with self._lock:
                kept = self._reserve.pop() if self._reserve else None
            if kept is None:
                held = _Held(self._connect_store())
            else:
                held = _Held(kept, self._reserve)
            self._local.held = held
        return held.socket

    def _connect_store(self) -> Socket:
        return self._connect(self._context, f"s{self._name}.{next(self._threads)}")

    def _here(self) -> bool:
        """False in a fork, which has this object, but not the threads that move its frames."""
        return os.getpid() == self._pid

    def _connect(self, context: Context, name: str) -> Socket:
        socket = context.socket(zmq.DEALER, socket_class=OwnSocket)
        bound(socket)
        socket.setsockopt(zmq.IDENTITY, name.encode())
        try:
            socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise LocalProtocolError(f"{self._endpoint!r} is no address: {error}") from error
        return socket
