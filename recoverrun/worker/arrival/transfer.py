"""State from a donor's memory into a newcomer's, over TCP, while the donor's step runs on.

The newcomer shows the token, and is told what there is: step, pieces, manifest. Then it asks for
pieces by number, and they come one after another, from the memory in which they lie:

    donor:     mark | piece | mark | piece | mark     a mark: one byte, WHOLE or CHANGED
    newcomer:                                         CHANGED is followed by the piece's number

Nothing is paused or copied for this. A piece must not change before its newcomer has it, and the
vote sees to that; a piece that has changed all the same is found by torch's count of its changes,
which a mark compares for the pieces on both sides of it, and the last mark for all. Writes by way
of `.data` are not counted.

Both sides are in this file, as what the one says is what the other reads.

Who may connect: whoever knows the token of 16 bytes, which travels over the authenticated control
plane. The stream itself is neither encrypted nor signed: its content is as open as what gloo sends.
"""

import itertools
import math
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgpack
import torch

from recoverrun.worker.arrival.entrance import Entrance
from recoverrun.worker.arrival.line import HungUp, Line
from recoverrun.worker.arrival.packing import DTYPES, unsendable
from recoverrun.worker.arrival.state_source import Piece, StateLost
from recoverrun.worker.arrival.tensor_memory import Departures, fill

STALL_S = 30.0

MOST_HEAD_BYTES = 1 << 28
"""Of the manifest and the list of pieces together; a usual one has some 20 kB."""

MOST_BYTES = 1 << 42

MAGIC = b"RRs1"
WHOLE, CHANGED = b"\1", b"\0"

_HEAD = struct.Struct("<4sQ")  # magic, bytes of what follows
_COUNT = struct.Struct("<I")

END_S = 5.0
"""A thread that serves ends at once when it is told to, unless a device holds it."""


class Address(NamedTuple):
    """The address of an offer, and the token without which nobody can fetch it."""

    host: str
    port: int
    token: bytes


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
        pieces = [_described(name, tensor) for name, tensor in zip(named, tensors, strict=False)]
        self._head: bytes = msgpack.packb([attempt, step, pieces, dict(manifest)])
        if len(self._head) > MOST_HEAD_BYTES:
            raise ValueError(f"a manifest of {len(self._head)} bytes")
        self._stall_s = stall_s
        self._amid = amid
        self.sent_bytes = 0  # of tensors
        self.trouble = ""  # why a newcomer was left, lately
        self._lock = threading.Lock()
        self._closed = False
        self._line: Line | None = None
        self._server: threading.Thread | None = None
        self._entrance = Entrance(host)
        self.address = Address(host, self._entrance.port, self._entrance.token)
        self._porter = threading.Thread(target=self._let_in, name="arrival door", daemon=True)
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
                self._begin_service(Line(connection, self._stall_s))
        except OSError as error:
            self.trouble = f"nobody can be let in any more: {error}"

    def _begin_service(self, line: Line) -> None:
        with self._lock:
            if self._closed:
                line.close()
                return
            self._line = line
            thread = threading.Thread(
                target=self._serve, args=(line,), name="arrival donor", daemon=True
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

    def _serve(self, line: Line) -> None:
        try:
            line.send(_HEAD.pack(MAGIC, len(self._head)), more=True)
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

    def _asked(self, line: Line) -> tuple[int, ...]:
        """Wait for the numbers of pieces that the newcomer wants next; none if it has left."""
        try:
            (count,) = _COUNT.unpack(line.receive(_COUNT.size))
        except HungUp:
            return ()
        if not 0 < count <= len(self._tensors):
            raise ConnectionError(f"{count} of {len(self._tensors)} pieces were asked for")
        asked = struct.unpack(f"<{count}I", line.receive(count * _COUNT.size))
        if max(asked) >= len(self._tensors):
            raise ConnectionError(f"piece {max(asked)} was asked for")
        return asked

    def _send(self, line: Line, asked: tuple[int, ...]) -> None:
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

    def _mark(self, line: Line, numbers: tuple[int, ...], *, more: bool) -> None:
        """Say whether these pieces are what they were when they were offered."""
        for number in numbers:
            if self._tensors[number]._version != self._versions[number]:
                line.send(CHANGED + _COUNT.pack(number))
                raise ConnectionError(f"piece {number} changed while it was sent")
        line.send(WHOLE, more=more)


class LivePeer:
    """A donor's offer, as its newcomer has it: a `StateSource`."""

    def __init__(
        self, address: Address, *, stall_s: float = STALL_S, most_bytes: int = MOST_BYTES
    ) -> None:
        """Connect, and receive the manifest.

        A donor that does nothing for `stall_s` seconds, or next to nothing for longer, is lost.
        Raises StateLost, also if the pieces have more than `most_bytes` in all.
        """
        self._where = f"the donor at {address.host} port {address.port}"
        self._asked: list[int] = []  # what the donor sends next, in this order
        self._end = ""  # why nothing can be read any more
        try:
            connection = socket.create_connection(address[:2], stall_s)
        except OSError as error:
            raise StateLost(f"{self._where} cannot be reached: {error}") from error
        self._line = Line(connection, stall_s)
        try:
            self._say(address.token)
            told = self._head()
            self.attempt: int = told[0]
            self.step: int = told[1]
            self._pieces = tuple(_piece(one) for one in told[2])
            self._manifest: dict[str, object] = told[3]
            total = sum(piece.nbytes for piece in self._pieces)
            if total > most_bytes:
                raise StateLost(f"{self._where} has {total} bytes of state, not {most_bytes}")
        except StateLost as error:
            self._hang_up(str(error))
            raise

    def manifest(self) -> Mapping[str, object]:
        return self._manifest

    def pieces(self) -> tuple[Piece, ...]:
        return self._pieces

    def ask(self, numbers: Sequence[int]) -> None:
        """Let the donor send these pieces, one after another: `read` follows in this order.

        Without this, `read` asks for one piece, and waits for the way there and back.
        """
        self._look_whether_open()
        if self._asked:
            raise ValueError(f"piece {self._asked[0]} was asked for, and is not read yet")
        known = range(len(self._pieces))
        if not 0 < len(numbers) <= len(known) or any(one not in known for one in numbers):
            raise ValueError(f"{len(known)} pieces, of which {list(numbers)} are asked for")
        self._say(struct.pack(f"<{1 + len(numbers)}I", len(numbers), *numbers))
        self._asked = list(numbers)
        self._expect_mark()

    def read(self, index: int, into: memoryview) -> None:
        """Fill `into`, which has exactly the bytes of piece `index`.

        Raises StateLost, after which nothing else can be read. The piece that was asked for last
        is the one that makes sure of all others that were asked for with it.
        """
        if into.nbytes != self._pieces[index].nbytes:
            raise ValueError(f"{self._pieces[index]} into {into.nbytes} bytes")
        self._begin(index)
        self._receive(into.cast("B"))
        self._finish()

    def read_tensor(self, index: int, into: torch.Tensor) -> None:
        """Fill a tensor of the shape and dtype of piece `index`, wherever it is. As `read`."""
        piece = self._pieces[index]
        if DTYPES[piece.dtype] is not into.dtype or piece.shape != into.shape:
            raise ValueError(f"{piece} into {tuple(into.shape)} of {into.dtype}")
        self._begin(index)
        fill(into, self._receive)
        self._finish()

    def close(self) -> None:
        self._hang_up("the connection was closed here")

    def _hang_up(self, reason: str) -> None:
        if not self._end:
            self._end = reason
            self._line.close()

    def _look_whether_open(self) -> None:
        if self._end:
            raise StateLost(self._end)

    def _begin(self, index: int) -> None:
        self._look_whether_open()
        if not self._asked:
            self.ask([index])
        if self._asked[0] != index:
            raise ValueError(f"piece {self._asked[0]} comes next, not {index}")

    def _finish(self) -> None:
        self._asked.pop(0)
        self._expect_mark()

    def _expect_mark(self) -> None:
        mark = bytearray(len(WHOLE))
        self._receive(memoryview(mark))
        if mark == WHOLE:
            return
        raw = bytearray(_COUNT.size)
        self._receive(memoryview(raw))
        (number,) = _COUNT.unpack(raw)
        name = self._pieces[number].name if number < len(self._pieces) else f"piece {number}"
        raise self._lost(f"{name} changed while it was sent")

    def _head(self) -> list[Any]:
        raw = bytearray(_HEAD.size)
        self._receive(memoryview(raw))
        magic, size = _HEAD.unpack(raw)
        if magic != MAGIC or size > MOST_HEAD_BYTES:
            raise StateLost(f"{self._where} does not speak of state")
        body = bytearray(size)
        self._receive(memoryview(body))
        try:
            told = msgpack.unpackb(body, strict_map_key=True)
        except ValueError as error:
            raise StateLost(f"{self._where} sent no manifest: {error}") from error
        kinds = [type(one) for one in told] if isinstance(told, list) else []
        if kinds != [int, int, list, dict]:
            raise StateLost(f"{self._where} sent no manifest")
        return list(told)

    def _say(self, said: bytes) -> None:
        try:
            self._line.send(said)
        except OSError as error:
            raise self._lost(f"{self._where} is lost: {error}") from error

    def _receive(self, memory: memoryview) -> None:
        try:
            self._line.fill(memory)
        except OSError as error:
            raise self._lost(f"{self._where} is lost: {error}") from error

    def _lost(self, reason: str) -> StateLost:
        self._hang_up(reason)
        return StateLost(reason)


def fetch(
    address: Address,
    allocate: Callable[[Piece], torch.Tensor],
    *,
    stall_s: float = STALL_S,
    amid: Callable[[], None] = lambda: None,
) -> tuple[Mapping[str, object], list[torch.Tensor]]:
    """Return the manifest of an offer, and the tensors that `allocate` made, filled.

    `amid` is called when half of them are. Raises StateLost, and ValueError if a tensor is not as
    its piece.
    """
    with closing(LivePeer(address, stall_s=stall_s)) as peer:
        numbers = range(len(peer.pieces()))
        tensors = [allocate(piece) for piece in peer.pieces()]
        if tensors:
            peer.ask(numbers)
        for number in numbers:
            peer.read_tensor(number, tensors[number])
            if number == len(tensors) // 2:
                amid()
        return peer.manifest(), tensors


def empty(piece: Piece) -> torch.Tensor:
    """A tensor for `piece` on the CPU, whose memory nobody has touched yet."""
    return torch.empty(piece.shape, dtype=DTYPES[piece.dtype], device="cpu")


def _described(name: str, tensor: torch.Tensor) -> list[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [name, dtype, list(tensor.shape), tensor.nbytes]


def _piece(told: object) -> Piece:
    """Raises StateLost if `told` is not what `_described` makes."""
    match told:
        case [str(name), str(dtype), [*sizes], int(nbytes)]:
            shape = tuple(size for size in sizes if isinstance(size, int) and size >= 0)
            kind = DTYPES.get(dtype)
            if (
                len(shape) == len(sizes)
                and kind is not None
                and math.prod(shape) * kind.itemsize == nbytes
            ):
                return Piece(name, dtype, shape, nbytes)
    raise StateLost(f"not the description of a tensor: {told!r:.200}")
