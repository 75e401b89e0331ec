"""Whoever hands something over waits for nothing, and the order is kept."""

import threading
import time

import pytest

from rendezvous.journal.spool import ALWAYS_MOST, Spool

PATIENCE_S = 30.0


class Gate:
    """Takes things, but none while it is shut."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def take(self, thing: int) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"
        self.taken.append(thing)


def _spool(gate: Gate, most: int = 100, most_bytes: int = 1000) -> Spool[int]:
    return Spool("test", gate.take, most=most, most_bytes=most_bytes)


def test_what_is_handed_over_is_taken_in_its_order() -> None:
    gate = Gate()
    spool = _spool(gate)

    assert all(spool.put(number) for number in range(50))

    assert spool.close(PATIENCE_S) == 0
    assert gate.taken == list(range(50))


def test_a_full_queue_refuses_and_goes_on_when_there_is_room() -> None:
    gate = Gate()
    gate.shut()
    spool = _spool(gate, most=3)

    taken = [spool.put(number) for number in range(5)]
    gate.open()
    assert spool.flush(PATIENCE_S)

    assert taken == [True, True, True, False, False]
    assert spool.put(5)
    assert spool.close(PATIENCE_S) == 0
    assert gate.taken == [0, 1, 2, 5]


def test_bytes_have_a_bound_too() -> None:
    gate = Gate()
    gate.shut()
    spool = _spool(gate)

    taken = [spool.put(number, size=400) for number in range(3)]
    gate.open()

    assert taken == [True, True, False]
    assert spool.close(PATIENCE_S) == 0


def test_what_matters_most_finds_room_in_a_full_queue_but_not_without_end() -> None:
    gate = Gate()
    gate.shut()
    spool = _spool(gate, most=3)
    assert all(spool.put(number) for number in range(3))

    always = [spool.put(9, always=True) for _ in range(ALWAYS_MOST + 1)]
    gate.open()

    assert always == [True] * ALWAYS_MOST + [False]
    assert spool.close(PATIENCE_S) == 0


def test_a_thread_that_is_held_up_is_seen_and_not_waited_for() -> None:
    gate = Gate()
    gate.shut()
    spool = _spool(gate)
    spool.put(1)
    assert gate.reached.wait(PATIENCE_S)

    began = time.monotonic()
    left = spool.close(0.0)

    assert left == 1
    assert spool.stalled_s(began + 7.0) > 6.0
    gate.open()
    assert spool.flush(PATIENCE_S)
    assert spool.stalled_s(began + 7.0) == 0.0


def test_nothing_is_taken_after_the_end() -> None:
    gate = Gate()
    spool = _spool(gate)
    spool.close(PATIENCE_S)

    assert not spool.put(1)
    assert not spool.put(2, always=True)
    assert gate.taken == []


def test_without_a_thread_things_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    spool = _spool(gate)
    with monkeypatch.context() as there:
        there.setattr(threading.Thread, "start", _refuse)
        assert spool.put(0)

    assert spool.put(1)

    assert spool.flush(PATIENCE_S)
    assert gate.taken == [0, 1]


@pytest.mark.usefixtures("no_threads")
def test_where_there_never_was_a_thread_things_are_taken_at_the_end() -> None:
    gate = Gate()
    spool = _spool(gate)
    assert spool.put(0) and spool.put(1)

    assert spool.close(0.0) == 0
    assert gate.taken == [0, 1]


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
