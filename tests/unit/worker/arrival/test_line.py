"""Bytes over a connection: all of them, or an end within a time limit."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from recoverrun.worker.arrival import line as line_module
from recoverrun.worker.arrival.line import PeerClosed, TimedSocket

STALL_S = 0.3


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


Ends = tuple[socket.socket, socket.socket]


def test_many_megabytes_arrive_as_they_were(ends: Ends) -> None:
    sent = bytes(range(256)) * (100_000)
    received = bytearray(len(sent))
    thread = threading.Thread(target=TimedSocket(ends[0], 5).send, args=(sent,))
    thread.start()
    TimedSocket(ends[1], 5).fill(memoryview(received))
    thread.join()

    assert received == sent


def test_what_is_more_to_follow_leaves_with_the_rest(ends: Ends) -> None:
    line = TimedSocket(ends[0], 5)
    for part in (b"a", b"bc", b""):
        line.send(part, more=True)
    line.send(b"d")

    assert TimedSocket(ends[1], 5).receive(4) == b"abcd"


@pytest.mark.parametrize("size", [1, 1000, line_module.SMALL_BYTES, 3 * line_module.SMALL_BYTES])
def test_parts_of_all_sizes_keep_their_order(ends: Ends, size: int) -> None:
    """Small ones are gathered, large ones leave from where they lie."""
    parts = [bytes([n]) * (size if n % 3 else 10) for n in range(30)]
    line, whole = TimedSocket(ends[0], 5), b"".join(parts)

    def send() -> None:
        for part in parts:
            line.send(part, more=True)
        line.send(b"")

    thread = threading.Thread(target=send)
    thread.start()
    found = TimedSocket(ends[1], 5).receive(len(whole))
    thread.join()

    assert found == whole


def test_small_parts_leave_in_few_calls(ends: Ends) -> None:
    """The other side would find the first one alone."""
    line = TimedSocket(ends[0], 5)
    for _ in range(1000):
        line.send(b"ab", more=True)
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[1].recv(1)
    line.send(b"c")

    assert TimedSocket(ends[1], 5).receive(2001) == b"ab" * 1000 + b"c"


def test_who_says_nothing_has_stalled_after_the_limit(ends: Ends) -> None:
    ends[1].sendall(b"ab")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="^2 of 3 bytes came through in "):
        TimedSocket(ends[0], STALL_S).receive(3)

    assert STALL_S * 0.9 < time.monotonic() - began < 20 * STALL_S


def test_who_takes_nothing_has_stalled_after_the_limit(ends: Ends) -> None:
    with pytest.raises(TimeoutError, match="then nothing$"):
        TimedSocket(ends[0], STALL_S).send(bytes(100 << 20))


def test_drops_now_and_then_are_no_progress(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes well within the limit for silence."""
    monkeypatch.setattr(line_module, "AT_ONCE", 1)
    done = threading.Event()

    def drip() -> None:
        while not done.wait(STALL_S / 10):
            ends[1].sendall(b".")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError, match="which is too slow$"):
            TimedSocket(ends[0], STALL_S).receive(1000)
    finally:
        done.set()
        thread.join()


def test_slowness_is_no_stall_while_enough_comes_through(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_module, "SLOWEST_BYTES_PER_S", 1)
    pause = threading.Event()

    def drip() -> None:
        for _ in range(8):
            pause.wait(STALL_S / 2)
            ends[1].sendall(b".")

    thread = threading.Thread(target=drip)
    thread.start()
    assert TimedSocket(ends[0], STALL_S).receive(8) == b"." * 8
    thread.join()


def test_the_end_of_a_connection_is_told(ends: Ends) -> None:
    ends[1].sendall(b"a")
    ends[1].close()

    with pytest.raises(PeerClosed, match="closed the connection"):
        TimedSocket(ends[0], 5).receive(2)


def test_sending_to_nobody_is_an_error_and_no_signal(ends: Ends) -> None:
    ends[1].close()
    line = TimedSocket(ends[0], 5)

    with pytest.raises(ConnectionError):
        for _ in range(100):
            line.send(bytes(1 << 20))


def test_hanging_up_wakes_whoever_waits(ends: Ends) -> None:
    line, raised = TimedSocket(ends[0], 30), []

    def wait() -> None:
        try:
            line.receive(1)
        except OSError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    line.hang_up()
    thread.join(10)

    assert not thread.is_alive() and isinstance(raised[0], PeerClosed)


def test_a_connection_ends_though_another_descriptor_is_open(ends: Ends) -> None:
    """As a forked child has one."""
    with ends[0].dup():
        TimedSocket(ends[0], 5).close()
        with pytest.raises(PeerClosed):
            TimedSocket(ends[1], 5).receive(1)
