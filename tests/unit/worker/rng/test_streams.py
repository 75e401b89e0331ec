"""Random streams as values: read, packed and restored."""

import random
from collections.abc import Iterator

import msgpack
import pytest
import torch

from recoverrun.worker.rng.streams import (
    CPU_BYTES,
    Streams,
    read_streams,
    restore_streams,
)


@pytest.fixture(autouse=True)
def _streams_put_back() -> Iterator[None]:
    before = read_streams()
    yield
    restore_streams(before)


def drawn() -> list[float]:
    return [*torch.rand(3).tolist(), *torch.randn(3).tolist(), random.random(), random.gauss(0, 1)]


def test_what_followed_a_reading_follows_again() -> None:
    streams = read_streams()
    first = drawn()
    torch.manual_seed(1)
    random.seed(1)

    restore_streams(streams)

    assert drawn() == first


def test_streams_go_through_msgpack() -> None:
    random.gauss(0, 1)  # leaves one that is cached
    streams = read_streams()

    packed = msgpack.packb(streams.pack())

    assert Streams.unpack(msgpack.unpackb(packed)) == streams


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [],
        [b"", [], b"", b""],
        [b"x" * CPU_BYTES, [], b"y", b""],
        [b"x" * CPU_BYTES, [], b"y" * 2500, b"z"],
        [b"x" * CPU_BYTES, [1], b"y" * 2500, b""],
        ["x" * CPU_BYTES, [], b"y" * 2500, b""],
    ],
)
def test_what_is_no_streams_is_refused(packed: object) -> None:
    with pytest.raises(ValueError, match="random streams"):
        Streams.unpack(packed)  # type: ignore[arg-type]
