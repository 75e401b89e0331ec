"""State out of a donor's memory, over TCP, while the donor's step runs on (`state_wire`).

Nothing is paused or copied for this. A piece must not change before its newcomer has it, and the
vote sees to that; a piece that has changed all the same is found by torch's count of its changes,
which a mark compares for the pieces on both sides of it, and the last mark for all. Writes by way
of `.data` are not counted.
"""

import itertools
import struct
import threading
from collections.abc import Callable, Mapping, Sequence

import msgpack
import torch

from recoverrun.worker.arrival.entrance import TokenListener
from recoverrun.worker.arrival.line import PeerClosed, TimedSocket
from recoverrun.worker.arrival.packing import unsendable
from recoverrun.worker.arrival.state_wire import (
    CHANGED,
    COUNT,
    HEAD,
    MAGIC,
    MOST_HEAD_BYTES,
    STALL_S,
    WHOLE,
    Address,
    described,
)
from recoverrun.worker.arrival.tensor_memory import Departures

END_S = 5.0
"""A thread that serves ends at once when it is told to, unless a device holds it."""


class Offer:
    """The data that a donor gives to one newcomer, served by threads of its own until it is closed.

    The newcomer whose connection broke may come again, and takes its own former place.
    """

    def __init__(
        self,
        host: str,
        manifest: Mapping[str, object],
        tensors: Sequence[torch.Tensor],
        *,
        attempt: int,
        step: int,
        names: Sequence[str] = (),
        stall_s: float = STALL_S,
        amid: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve `manifest`, which msgpack can pack, and `tensors` at an address of `host`.

        Tensors must not change until the newcomer has them: clone beforehand what may. `names`
        are for people; `amid` is called in the middle of all that is sent. Raises OSError if `host`
        cannot be listened on, ValueError for what cannot be sent.
        """
        for tensor in tensors:
            if trouble := unsendable(tensor):
                raise ValueError(f"{trouble} cannot be sent")
        # Not the objects themselves: FSDP points parameters to other memory now and then. The
        # count of changes is the same; a tensor of inference mode has none.
        self._tensors = [one.clone() if one.is_inference() else one.detach() for one in tensors]
        self._versions = [tensor._version for tensor in self._tensors]
        self._departures = Departures(self._tensors)
        named = itertools.chain(names, map("tensor {}".format, itertools.count(len(names))))
        pieces = [described(name, tensor) for name, tensor in zip(named, tensors, strict=False)]
        self._head: bytes = msgpack.packb([attempt, step, pieces, dict(manifest)])
        if len(self._head) > MOST_HEAD_BYTES:
            raise ValueError(f"a manifest of {len(self._head)} bytes")
        self._stall_s = stall_s
        self._amid = amid
        self.sent_bytes = 0  # of tensors
        self.trouble = ""  # why a newcomer was left, lately
        self._lock = threading.Lock()
        self._closed = False
        self._line: TimedSocket | None = None
        self._server: threading.Thread | None = None
        self._entrance = TokenListener(host)
        self.address = Address(host, self._entrance.port, self._entrance.token)
        self._porter = threading.Thread(target=self._let_in, name="recoverrun-door", daemon=True)
        self._porter.start()

    def close(self) -> None:
        """Serve nobody any more: the tensors are not looked at after this. May be called twice."""
        with self._lock:
            self._closed = True
        self._entrance.close()
        self._porter.join(END_S)
        self._end_service()

    def __enter__(self) -> "Offer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _let_in(self) -> None:
        try:
            while (connection := self._entrance.next()) is not None:
                self._end_service()
                self._begin_service(TimedSocket(connection, self._stall_s))
        except OSError as error:
            self.trouble = f"nobody can be let in any more: {error}"

    def _begin_service(self, line: TimedSocket) -> None:
        with self._lock:
            if self._closed:
                line.close()
                return
            self._line = line
            thread = threading.Thread(
                target=self._serve, args=(line,), name="recoverrun-donor", daemon=True
            )
            self._server = thread
            thread.start()

    def _end_service(self) -> None:
        """End the service of the newcomer, which has come again, or does not get any more."""
        with self._lock:
            line, server = self._line, self._server
            if line is not None:
                line.hang_up()
        if server is not None:
            server.join(END_S)

    def _serve(self, line: TimedSocket) -> None:
        try:
            line.send(HEAD.pack(MAGIC, len(self._head)), more=True)
            line.send(self._head)
            while asked := self._asked(line):
                self._send(line, asked)
        except (OSError, RuntimeError) as error:  # the latter from torch: out of memory, a device
            self.trouble = str(error)
        finally:
            with self._lock:
                if self._line is line:
                    self._line = None
                line.close()

    def _asked(self, line: TimedSocket) -> tuple[int, ...]:
        """Wait for the numbers of pieces that the newcomer wants next; none if it has left."""
        try:
            (count,) = COUNT.unpack(line.receive(COUNT.size))
        except PeerClosed:
            return ()
        if not 0 < count <= len(self._tensors):
            raise ConnectionError(f"{count} of {len(self._tensors)} pieces were asked for")
        asked = struct.unpack(f"<{count}I", line.receive(count * COUNT.size))
        if max(asked) >= len(self._tensors):
            raise ConnectionError(f"piece {max(asked)} was asked for")
        return asked

    def _send(self, line: TimedSocket, asked: tuple[int, ...]) -> None:
        before: tuple[int, ...] = ()
        for number in asked:
            self._mark(line, (*before, number), more=True)
            for part in self._departures.parts(self._tensors[number]):
                line.send(part, more=True)
                self.sent_bytes += len(part)
            before = (number,)
            if number == asked[len(asked) // 2]:
                self._amid()
        self._mark(line, asked, more=False)

    def _mark(self, line: TimedSocket, numbers: tuple[int, ...], *, more: bool) -> None:
        """Say whether these pieces are what they were when they were offered."""
        for number in numbers:
            if self._tensors[number]._version != self._versions[number]:
                line.send(CHANGED + COUNT.pack(number))
                raise ConnectionError(f"piece {number} changed while it was sent")
        line.send(WHOLE, more=more)
