"""Contexts as other nodes keep them."""

import zlib

import msgpack
import pytest

from rendezvous.protocol.context_copies import packed, unpacked
from rendezvous.protocol.shared_memory import MOST_BYTES


@pytest.mark.parametrize("contexts", [[], [b"one"], [bytes(300)] * 20, [b"x"] * 70_000])
def test_contexts_are_the_same_packed_or_not(contexts: list[bytes]) -> None:
    payload = msgpack.packb(contexts, use_bin_type=True)

    assert unpacked(packed(payload)) == payload
    assert unpacked(payload) == payload


def test_what_cannot_be_unpacked_is_nothing() -> None:
    whole = packed(b"context" * 100)

    assert unpacked(whole[:-5]) == b""
    assert unpacked(whole[:1] + b"?" * 20) == b""
    assert unpacked(b"") == b""


def test_no_node_is_made_to_hold_more_than_a_rank_may_leave() -> None:
    assert unpacked(zlib.compress(bytes(MOST_BYTES))) == bytes(MOST_BYTES)
    assert unpacked(zlib.compress(bytes(MOST_BYTES + 1))) == b""
