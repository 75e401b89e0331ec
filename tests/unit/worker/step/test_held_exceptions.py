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


def test_a_timer_of_code_that_is_executed_for_another_rank_is_its_own(
    held: HeldExceptions,
) -> None:
    held.acting = lambda: True
    with pytest.raises(Late), held:
        Handler(_raise)(signal.SIGALRM, None)
        pytest.fail("it is raised")
    with pytest.raises(Late), held:
        Handler(_raise)(signal.SIGTERM, None)
        held.acting = lambda: False


def test_it_comes_in_the_thread_that_runs_handlers(held: HeldExceptions) -> None:
    left = False
    with pytest.raises(Late), held:
        Handler(_raise)(signal.SIGUSR1, None)
        with ThreadPoolExecutor(1) as another:
            another.submit(held.let_go).result()
        left = True

    assert left
