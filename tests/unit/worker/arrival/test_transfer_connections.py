"""Connections to a donor, again, too; donors that go, stall, or are none."""

import socket
import struct
import threading
import time
from contextlib import closing

import pytest
import torch

from recoverrun.worker.arrival.state_source import StateLost
from recoverrun.worker.arrival.state_wire import CHANGED
from recoverrun.worker.arrival.transfer import LivePeer, empty, fetch
from tests.unit.donors import SHORT_S, STALL_S, come, donor, head, offer, wait_until

# ------------------------------------------------------------------------ who comes, and again


def test_a_newcomer_may_come_again() -> None:
    with offer([torch.arange(3), torch.arange(4)]) as given:
        with closing(come(given)) as peer:
            peer.ask([0, 1])
            peer.read_tensor(0, torch.empty(3, dtype=torch.int64))
        _, found = fetch(given.address, empty, stall_s=STALL_S)

    assert [one.tolist() for one in found] == [[0, 1, 2], [0, 1, 2, 3]]


def test_a_newcomer_that_comes_again_takes_its_former_place() -> None:
    """Its former connection is half open: nobody has told the donor that it is gone."""
    with offer([torch.zeros(20_000_000), torch.ones(1)]) as given:
        with closing(come(given)) as former:
            former.ask([0, 1])  # and receives nothing
            _, found = fetch(given.address, empty, stall_s=STALL_S)
            with pytest.raises(StateLost):
                former.read(0, memoryview(bytearray(80_000_000)))

    assert found[1].item() == 1


@pytest.mark.parametrize("token", [b"", b"short", bytes(16)], ids=["none", "short", "wrong"])
def test_without_the_token_nothing_is_told(token: bytes) -> None:
    with offer([torch.ones(1)]) as given:
        with socket.create_connection(given.address[:2], STALL_S) as stranger:
            stranger.sendall(token)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        _, found = fetch(given.address, empty, stall_s=STALL_S)

    assert found[0].item() == 1


def test_a_newcomer_with_a_wrong_token_learns_that_the_donor_hung_up() -> None:
    with offer([]) as given:
        wrong = given.address._replace(token=bytes(16))
        with pytest.raises(StateLost, match="closed the connection"):
            LivePeer(wrong, stall_s=STALL_S)


def test_who_says_nothing_keeps_nobody_out() -> None:
    with offer([torch.ones(1)]) as given:
        silent = [socket.create_connection(given.address[:2], STALL_S) for _ in range(40)]
        began = time.monotonic()
        _, found = fetch(given.address, empty, stall_s=STALL_S)
        took_s = time.monotonic() - began
        for one in silent:
            one.close()

    assert found[0].item() == 1 and took_s < STALL_S


def test_a_closed_offer_lets_nobody_in() -> None:
    given = offer([torch.ones(1)])
    given.close()
    given.close()

    with pytest.raises(StateLost, match="cannot be reached"):
        come(given)


def test_a_closed_offer_has_no_threads_and_no_newcomer() -> None:
    before = threading.active_count()
    given = offer([torch.zeros(20_000_000)])
    with closing(come(given)) as peer:
        peer.ask([0])
        given.close()

        assert threading.active_count() == before
        with pytest.raises(StateLost):
            peer.read(0, memoryview(bytearray(80_000_000)))


def test_a_newcomer_that_stalls_is_left() -> None:
    with offer([torch.zeros(20_000_000)], stall_s=SHORT_S) as given:
        with closing(come(given)) as peer:
            peer.ask([0])
            wait_until(lambda: given.trouble != "")

    assert "then nothing" in given.trouble


# --------------------------------------------------------------------- donors that are none


WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "closed the connection"),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak of state"),
    "too large": (head(b"", size=1 << 40), "does not speak of state"),
    "cut off": (head(b"\x94", size=100), "closed the connection"),
    "no msgpack": (head(b"\xc1"), "no manifest"),
    "no list": (head({"a": 1}), "no manifest"),
    "no step": (head([0, None, [], {}]), "no manifest"),
    "a flag for a step": (head([0, True, [], {}]), "no manifest"),
    "a list for a manifest": (head([0, 1, [], []]), "no manifest"),
    "no piece": (head([0, 1, [5], {}]), "description of a tensor"),
    "an unknown dtype": (head([0, 1, [["w", "load", [1], 4]], {}]), "description"),
    "a negative size": (head([0, 1, [["w", "float32", [-1, -1], 4]], {}]), "description"),
    "a size of text": (head([0, 1, [["w", "float32", ["1"], 4]], {}]), "description"),
    "other bytes": (head([0, 1, [["w", "float32", [3], 400]], {}]), "description"),
    "too many bytes": (head([0, 1, [["w", "int8", [1 << 50], 1 << 50]], {}]), "of state, not"),
}


@pytest.mark.parametrize(("said", "why"), WRONG.values(), ids=WRONG)
def test_a_donor_that_is_none_is_lost_before_anything_is_allocated(said: bytes, why: str) -> None:
    with donor(said) as address, pytest.raises(StateLost, match=why):
        LivePeer(address, stall_s=STALL_S)


PIECE = head([0, 1, [["w", "float32", [4]] + [16]], {}])


@pytest.mark.parametrize("then", ["close", "wait"])
@pytest.mark.parametrize(
    "said",
    [PIECE, PIECE + b"\1", PIECE + b"\1" + bytes(15), PIECE + b"\1" + bytes(16), PIECE + b"\0\0"],
    ids=["no mark", "no piece", "half a piece", "no last mark", "half a number"],
)
def test_a_donor_that_goes_or_stalls_is_lost(said: bytes, then: str) -> None:
    with donor(said, then=then) as address, closing(LivePeer(address, stall_s=SHORT_S)) as peer:
        began = time.monotonic()
        with pytest.raises(StateLost, match=r"^the donor at 127.0.0.1 port \d+ is lost: "):
            peer.read(0, memoryview(bytearray(16)))
        took_s = time.monotonic() - began

    assert took_s < 10 * SHORT_S


def test_a_donor_that_says_nothing_is_lost() -> None:
    with (
        donor(then="wait") as address,
        pytest.raises(
            StateLost, match="^the donor .*: 0 of 12 bytes came through in .* s, then nothing$"
        ),
    ):
        LivePeer(address, stall_s=SHORT_S)


def test_a_changed_piece_that_does_not_exist_is_named_by_its_number() -> None:
    with donor(PIECE + CHANGED + struct.pack("<I", 9)) as address:
        with closing(LivePeer(address)) as peer, pytest.raises(StateLost, match="^piece 9 changed"):
            peer.read(0, memoryview(bytearray(16)))


@pytest.mark.parametrize(
    "asked",
    [struct.pack("<I", 0), struct.pack("<I", 3), struct.pack("<II", 1, 2)],
    ids=["nothing", "more than there are", "one that is not there"],
)
def test_who_asks_for_what_there_is_not_is_left(asked: bytes) -> None:
    with offer([torch.ones(1)] * 2) as given:
        with socket.create_connection(given.address[:2], STALL_S) as newcomer:
            newcomer.sendall(given.address.token + asked)
            with newcomer.makefile("rb") as told:
                told.read()
        wait_until(lambda: given.trouble != "")

    assert "asked for" in given.trouble
