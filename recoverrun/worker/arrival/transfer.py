"""State out of a donor's memory into that of its newcomer, over TCP (`offer`, `state_wire`)."""

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgpack
import torch

from recoverrun.worker.arrival.line import TimedSocket
from recoverrun.worker.arrival.packing import DTYPES
from recoverrun.worker.arrival.state_source import Piece, StateLost
from recoverrun.worker.arrival.state_wire import (
    COUNT,
    HEAD,
    MAGIC,
    MOST_HEAD_BYTES,
    STALL_S,
    WHOLE,
    Address,
    piece_of,
)
from recoverrun.worker.arrival.tensor_memory import fill

MOST_BYTES = 1 << 42


class LivePeer:
    """A donor's offer, as its newcomer has it: a `StateSource`."""

    def __init__(self, address: Address, *, stall_s: float = STALL_S) -> None:
        """Connect, and receive the manifest.

        A donor that does nothing for `stall_s` seconds, or next to nothing for longer, is lost.
        Raises StateLost, also if the pieces have more than MOST_BYTES in all.
        """
        self._where = f"the donor at {address.host} port {address.port}"
        self._asked: list[int] = []  # what the donor sends next, in this order
        self._end = ""  # why nothing can be read any more
        try:
            connection = socket.create_connection(address[:2], stall_s)
        except OSError as error:
            raise StateLost(f"{self._where} cannot be reached: {error}") from error
        self._line = TimedSocket(connection, stall_s)
        try:
            self._say(address.token)
            told = self._head()
            self.attempt: int = told[0]
            self.step: int = told[1]
            self._pieces = tuple(piece_of(one) for one in told[2])
            self._manifest: dict[str, object] = told[3]
            total = sum(piece.nbytes for piece in self._pieces)
            if total > MOST_BYTES:
                raise StateLost(f"{self._where} has {total} bytes of state, not {MOST_BYTES}")
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
        raw = bytearray(COUNT.size)
        self._receive(memoryview(raw))
        (number,) = COUNT.unpack(raw)
        name = self._pieces[number].name if number < len(self._pieces) else f"piece {number}"
        raise self._lost(f"{name} changed while it was sent")

    def _head(self) -> list[Any]:
        raw = bytearray(HEAD.size)
        self._receive(memoryview(raw))
        magic, size = HEAD.unpack(raw)
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
