"""Code that is executed for another rank leaves nothing for the end of this process."""

import atexit
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recoverrun.worker.replay.end_of_process import nothing_left

OWN = (__name__,)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """Functions that are called as the process ends."""
    found: list[Callable[..., Any]] = []
    monkeypatch.setattr(atexit, "register", lambda function, *_, **__: found.append(function))
    return found


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def farewell() -> None:
    raise AssertionError("of a rank that is gone")


def test_exit_functions_of_the_script_are_dropped(registered: list[Callable[..., Any]]) -> None:
    with nothing_left(OWN):
        assert atexit.register(farewell) is farewell

    assert registered == []


def test_what_a_library_registers_stays(registered: list[Callable[..., Any]]) -> None:
    with nothing_left(("train",)):
        atexit.register(farewell, 1, word="x")

    assert registered == [farewell]


def test_what_is_registered_later_is_this_ranks_own(registered: list[Callable[..., Any]]) -> None:
    with nothing_left(OWN):
        pass
    atexit.register(farewell)

    assert registered == [farewell]


def test_threads_of_the_script_are_not_waited_for(gate: threading.Event) -> None:
    thread = threading.Thread(target=gate.wait, args=(60,))
    with nothing_left(OWN):
        thread.start()

    assert thread.daemon and thread.is_alive()


def test_threads_of_libraries_are_waited_for(gate: threading.Event) -> None:
    thread = threading.Thread(target=gate.wait, args=(60,))
    with nothing_left(("train",)):
        thread.start()

    assert not thread.daemon


def test_threads_that_another_thread_starts_are_waited_for(gate: threading.Event) -> None:
    """This rank's own threads go on meanwhile."""
    thread, begun, go = threading.Thread(target=gate.wait, args=(60,)), [], threading.Event()

    def starts() -> None:
        go.wait(60)
        thread.start()
        begun.append(thread.daemon)

    own = threading.Thread(target=starts)
    own.start()
    with nothing_left(OWN):
        go.set()
        own.join(60)

    assert begun == [False]


def test_a_thread_that_was_started_says_itself_that_it_cannot_be_started_again() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    with nothing_left(OWN), pytest.raises(RuntimeError, match="once"):
        thread.start()


def test_all_is_put_back() -> None:
    before = atexit.register, threading.Thread.start
    with nothing_left(OWN):
        assert (atexit.register, threading.Thread.start) != before

    assert (atexit.register, threading.Thread.start) == before
