"""Admission of newcomers: of one with the token, however many others stand at the door."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from recoverrun.worker.arrival import entrance as entrance_module
from recoverrun.worker.arrival.entrance import MOST_AT_THE_DOOR, TOKEN_BYTES, TokenListener


@pytest.fixture
def entrance() -> Iterator[TokenListener]:
    made = TokenListener("127.0.0.1")
    yield made
    made.close()
    assert made.next() is None


def come(entrance: TokenListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", entrance.port), 10)


def met(entrance: TokenListener, visitor: socket.socket) -> bool:
    """True if `visitor` is the one who is let in next."""
    found = entrance.next()
    assert found is not None
    with found:
        return found.getpeername() == visitor.getsockname()


def test_each_entrance_has_a_token_of_its_own(entrance: TokenListener) -> None:
    other = TokenListener("127.0.0.1")
    other.close()

    assert len(entrance.token) == TOKEN_BYTES and entrance.token != other.token


def test_a_token_may_come_in_pieces(entrance: TokenListener) -> None:
    with come(entrance) as visitor:
        visitor.sendall(entrance.token[:5])
        timer = threading.Timer(0.05, visitor.sendall, (entrance.token[5:],))
        timer.start()

        assert met(entrance, visitor)


def test_nothing_behind_the_token_is_taken(entrance: TokenListener) -> None:
    with come(entrance) as visitor:
        visitor.sendall(entrance.token + b"more")
        found = entrance.next()
        assert found is not None
        with found:
            found.setblocking(True)
            assert found.recv(10) == b"more"


@pytest.mark.parametrize("change", [0, TOKEN_BYTES - 1])
def test_a_token_that_differs_in_one_bit_is_none(entrance: TokenListener, change: int) -> None:
    wrong = bytearray(entrance.token)
    wrong[change] ^= 1
    with come(entrance) as stranger, come(entrance) as visitor:
        stranger.sendall(wrong)
        visitor.sendall(entrance.token)

        assert met(entrance, visitor)
        visitor.close()
        with come(entrance) as again:
            again.sendall(entrance.token)
            assert met(entrance, again)
        assert stranger.recv(1) == b""


def test_who_is_silent_is_sent_away_after_a_time(
    entrance: TokenListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance_module, "SILENT_S", 0.1)
    thread = threading.Thread(target=entrance.next)
    thread.start()
    with come(entrance) as silent:
        silent.sendall(b"abc")
        assert silent.recv(1) == b""
    entrance.close()
    thread.join(10)

    assert not thread.is_alive()


def test_the_oldest_makes_room_at_a_full_door(
    entrance: TokenListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance_module, "SILENT_S", 1000.0)
    found: list[socket.socket | None] = []
    thread = threading.Thread(target=lambda: found.append(entrance.next()))
    thread.start()
    silent = [come(entrance) for _ in range(MOST_AT_THE_DOOR + 1)]
    with come(entrance) as visitor:
        visitor.sendall(entrance.token)
        thread.join(10)
        assert found[0] is not None
        with found[0] as let_in:
            assert let_in.getpeername() == visitor.getsockname()
    gone = [one.recv(1) == b"" for one in silent[:2]]
    for one in silent:
        one.close()

    assert gone == [True, True]


def test_of_two_that_show_the_token_at_once_only_one_is_let_in(entrance: TokenListener) -> None:
    with come(entrance) as first, come(entrance) as second, come(entrance) as other:
        for one in (first, second):
            one.sendall(entrance.token[:1])
        other.sendall(entrance.token)
        assert met(entrance, other)  # by now the two stand at the door
        for one in (first, second):
            one.sendall(entrance.token[1:])
        found = entrance.next()
        assert found is not None
        with found:
            (left,) = (one for one in (first, second) if one.getsockname() != found.getpeername())
            assert left.recv(1) == b""


def test_closing_wakes_whoever_waits() -> None:
    entrance, found = TokenListener("127.0.0.1"), [object()]
    thread = threading.Thread(target=lambda: found.append(entrance.next()))
    thread.start()
    began = time.monotonic()
    entrance.close()
    thread.join(10)
    entrance.close()

    assert found[-1] is None and time.monotonic() - began < 5
    with pytest.raises(ConnectionRefusedError):
        come(entrance)
