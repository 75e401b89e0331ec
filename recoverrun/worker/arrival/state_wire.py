"""The bytes between a donor and its newcomer: what one side says is what the other one reads.

The newcomer shows the token, and is told what there is: step, pieces, manifest. Then it asks for
pieces by number, and they come one after another, from the memory in which they lie:

    donor:     mark | piece | mark | piece | mark     a mark: one byte, WHOLE or CHANGED
    newcomer:                                         CHANGED is followed by the piece's number

Who may connect: whoever knows the token of 16 bytes, which travels over the authenticated control
plane. The stream itself is neither encrypted nor signed: its content is as open as what gloo sends.
"""

import math
import struct
from typing import Any, NamedTuple

import torch

from recoverrun.worker.arrival.packing import DTYPES
from recoverrun.worker.arrival.state_source import Piece, StateLost

STALL_S = 30.0

MOST_HEAD_BYTES = 1 << 28
"""Of the manifest and the list of pieces together; a usual one has some 20 kB."""

MAGIC = b"RRs1"
WHOLE, CHANGED = b"\1", b"\0"

HEAD = struct.Struct("<4sQ")  # magic, bytes of what follows
COUNT = struct.Struct("<I")


class Address(NamedTuple):
    """The address of an offer, and the token without which nobody can fetch it."""

    host: str
    port: int
    token: bytes


def described(name: str, tensor: torch.Tensor) -> list[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [name, dtype, list(tensor.shape), tensor.nbytes]


def piece_of(told: object) -> Piece:
    """Raises StateLost if `told` is not what `described` makes."""
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
