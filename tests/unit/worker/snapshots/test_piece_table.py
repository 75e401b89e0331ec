"""The places of pieces, and what is told beside them."""

import msgpack
import pytest
import torch

from recoverrun.worker.snapshots.piece_table import (
    ALIGNED,
    PROOF_BYTES,
    RankImage,
    packed_proof,
    packed_table,
    placed,
    unpacked_image,
    unpacked_table,
)


def image() -> RankImage:
    tensors = [torch.randn(3, 5), torch.empty(0), torch.arange(9, dtype=torch.uint8)]
    return RankImage({"here": [1, "two", b"3"]}, tensors, ["weight", "nothing", "bytes"])


def test_pieces_lie_apart_and_aligned_and_their_table_travels() -> None:
    places, nbytes, first = placed(image())

    assert unpacked_table(packed_table(places)) == places
    assert [one.offset for one in places] == [
        0,
        ALIGNED,
        ALIGNED,
    ] and nbytes == first == 2 * ALIGNED
    assert [one.piece.shape for one in places] == [(3, 5), (0,), (9,)]


def test_what_is_copied_later_lies_behind_the_rest_and_keeps_its_number() -> None:
    places, nbytes, first = placed(image(), {0})

    assert [one.piece.name for one in places] == ["weight", "nothing", "bytes"]
    assert [one.offset for one in places] == [ALIGNED, 0, 0]
    assert (first, nbytes) == (ALIGNED, 2 * ALIGNED)


@pytest.mark.parametrize("proof", [None, 0, 1 << 32])
def test_what_is_known_later_stands_behind_the_image(proof: int | None) -> None:
    packed = packed_proof(proof)
    assert len(packed) <= PROOF_BYTES

    assert unpacked_image(image().packed() + packed) == (image().manifest, proof)


@pytest.mark.parametrize(
    "told", [b"", msgpack.packb({"a": 1}), msgpack.packb([1]) + b"\xc0", b"\xc1\xc1"]
)
def test_what_is_no_image_is_refused(told: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked_image(told)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not a table"):
        unpacked_table(b"\xc1")
