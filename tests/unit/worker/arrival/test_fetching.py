"""A newcomer waits for what its donor tells, and no longer than that one is in a view."""

import threading
from types import SimpleNamespace
from typing import Any, Never

import pytest

from recoverrun.worker.arrival.fetching import from_donor
from recoverrun.worker.arrival.state_source import StateLost
from rendezvous.protocol.views import View

DONOR = 2


def view(generation: int, *live: int) -> View:
    return View(generation=generation, live=live, live_ranks=live, losses=())


class Waiting:
    """A worker that is told of views."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.view = view(3, 0, 1, DONOR)

    def hear(self, newer: View) -> None:
        with self.changed:
            self.view = newer
            self.changed.notify_all()


def worker() -> Any:
    return Waiting()


def test_what_was_fetched_is_returned_from_another_thread() -> None:
    assert from_donor(worker(), DONOR, threading.get_ident) != threading.get_ident()


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    def fetch() -> Never:
        raise ValueError("3 bytes")

    with pytest.raises(ValueError, match="3 bytes"):
        from_donor(worker(), DONOR, fetch)


def test_the_wait_outlives_the_loss_of_others_and_ends_with_that_of_the_donor() -> None:
    here, asked, told = worker(), threading.Event(), threading.Event()

    def fetch() -> None:
        asked.set()
        told.wait()

    def lose() -> None:
        asked.wait()
        here.hear(view(4, 1, DONOR))
        here.hear(view(5, 1))

    losing = threading.Thread(target=lose)
    losing.start()
    with pytest.raises(StateLost, match="rank 2, which was to tell it, is lost"):
        from_donor(here, DONOR, fetch)

    losing.join()
    told.set()


def test_the_state_may_come_whole_although_others_are_lost_meanwhile() -> None:
    here = worker()

    def fetch() -> SimpleNamespace:
        here.hear(view(4, 1, DONOR))
        return SimpleNamespace(step=7)

    assert from_donor(here, DONOR, fetch).step == 7
