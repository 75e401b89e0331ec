"""The parts of a snapshot of one rank: an image, and tensors beside it by number."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import torch

from recoverrun.worker.arrival.packing import DTYPES
from recoverrun.worker.arrival.state_source import Piece

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

ALIGNED = 64
"""Bytes: each piece begins at a multiple of so many."""


@dataclass(frozen=True, slots=True)
class RankImage:
    """`manifest` is plain; its tensors are in `tensors`, by number."""

    manifest: Mapping[str, Any]
    tensors: Sequence[torch.Tensor]
    names: Sequence[str]  # of the tensors: where each was found

    def packed(self) -> bytes:
        """The manifest as msgpack."""
        return bytes(msgpack.packb(self.manifest, use_bin_type=True))


class Placed(NamedTuple):
    """A piece, and where it begins among the bytes of all."""

    piece: Piece
    offset: int


def placed(image: RankImage, later: Collection[int] = ()) -> tuple[list[Placed], int, int]:
    """The place of each tensor of `image`; the bytes of all, and of those that come first. The ones
    with these numbers come behind all others, as they are copied `later`.
    """
    pieces = [
        Piece(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.nbytes)
        for name, tensor in zip(image.names, image.tensors, strict=True)
    ]
    offsets, end = [0] * len(pieces), 0
    at_once = [number for number in range(len(pieces)) if number not in later]
    for number in at_once:
        offsets[number] = end
        end += -(-pieces[number].nbytes // ALIGNED) * ALIGNED
    first = end
    for number in sorted(later):
        offsets[number] = end
        end += -(-pieces[number].nbytes // ALIGNED) * ALIGNED
    return list(map(Placed, pieces, offsets)), end, first


def packed_table(places: Sequence[Placed]) -> bytes:
    rows = [(*piece, offset) for piece, offset in places]
    return bytes(msgpack.packb(rows, use_bin_type=True))


def unpacked_table(table: bytes) -> list[Placed]:
    """Raises ValueError if `table` is none."""
    try:
        rows = msgpack.unpackb(table, raw=False)
        return [
            Placed(Piece(str(name), str(dtype), tuple(map(int, shape)), int(nbytes)), int(offset))
            for name, dtype, shape, nbytes, offset in rows
        ]
    except (TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not a table of pieces: {error!r}") from error


PROOF_BYTES = 16
"""At most, behind the image."""


def packed_proof(proof: int | None) -> bytes:
    """Behind a packed image: what is known of the step only once it goes on."""
    return bytes(msgpack.packb(proof))


def unpacked_image(told: bytes) -> tuple[dict[str, Any], int | None]:
    """The manifest of an image, and its proof. Raises ValueError if `told` is none."""
    reader = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=len(told) or 1)
    reader.feed(told)
    try:
        manifest, proof = reader
    except (msgpack.UnpackException, TypeError) as error:
        raise ValueError(f"not an image: {error!r}") from error
    if not isinstance(manifest, dict) or not isinstance(proof, int | None):
        raise ValueError("not an image, or one without a proof")
    return manifest, proof
