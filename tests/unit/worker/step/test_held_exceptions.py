"""Exceptions of the script's signal handlers come behind what must not be left half done."""

import signal
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from recoverrun.worker.step import held_exceptions
from recoverrun.worker.step.held_exceptions import Handler, HeldExceptions


class Late(Exception):
    pass


def _raise(number: int, frame: FrameType | None) -> None:
    raise Late(number)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldExceptions:
    held = HeldExceptions()
    monkeypatch.setattr(held_exceptions, "HELD", held)
    return held


def test_an_exception_comes_at_the_outer_end(held: HeldExceptions) -> None:
    done = []
    with pytest.raises(Late, match="10"), held:
        with held:
            Handler(_raise)(10, None)
            done.append("inner")
        done.append("outer")
        Handler(_raise)(12, None)

    assert done == ["inner", "outer"]
    with held:
        done.append("nothing is left")


def test_outside_it_comes_at_once(held: HeldExceptions) -> None:
    with pytest.raises(Late):
        Handler(_raise)(10, None)


def test_whoever_waits_for_nobody_may_ask_for_it_before(held: HeldExceptions) -> None:
    with pytest.raises(Late), held:
        held.let_go()
        Handler(_raise)(10, None)
        held.let_go()
        pytest.fail("it is raised")


def test_what_ends_a_job_is_not_held(held: HeldExceptions) -> None:
    with pytest.raises(Late), held:
        Handler(_raise)(signal.SIGTERM, None)
        pytest.fail("it is raised")


def test_a_timer_of_code_that_is_executed_for_another_rank_is_its_own(
    held: HeldExceptions,
) -> None:
    held.acting = lambda: True
    with pytest.raises(Late), held:
        Handler(_raise)(signal.SIGALRM, None)
        pytest.fail("it is raised")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_other_handlers_find_the_variables_of_their_own_rank(
    held: HeldExceptions, number: signal.Signals
) -> None:
    rank, found = 1, []

    def note(*_: object) -> None:
        found.append(rank)

    held.acting = lambda: rank != 1
    with held:
        rank = 0
        Handler(note)(number, None)
        Handler(note)(number, None)
        held.let_go()  # of a thread, say, or because somebody is gone
        assert not found
        rank = 1
    assert found == [1, 1]


def test_all_that_were_postponed_are_called_and_the_first_exception_counts(
    held: HeldExceptions,
) -> None:
    found = []
    acting = True
    held.acting = lambda: acting
    with pytest.raises(Late, match="15"), held:
        for handler in (_raise, lambda *_: found.append("called")):
            Handler(handler)(signal.SIGTERM, None)
        acting = False

    assert found == ["called"]


def test_it_comes_in_the_thread_that_runs_handlers(held: HeldExceptions) -> None:
    left = False
    with pytest.raises(Late), held:
        Handler(_raise)(signal.SIGUSR1, None)
        with ThreadPoolExecutor(1) as another:
            another.submit(held.let_go).result()
        left = True

    assert left
