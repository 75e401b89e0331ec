"""The outcome of a suspect microbatch in a copy of this process."""

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.verification.rehearsal import Rehearsal
from rendezvous.protocol.layout import Layout
from tests.unit.workers import protected

pytestmark = [
    pytest.mark.usefixtures("streams_put_back"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc is read"),
]

IDENTITY = (1, 0)
WITHIN_S = 20.0


def rehearsal(*suspects: tuple[int, int], within_s: float = WITHIN_S) -> Rehearsal:
    worker: Any = SimpleNamespace(
        layout=Layout(((0,), (1,))),
        strategy=SimpleNamespace(alone=True),
        machine=SimpleNamespace(suspects=suspects, step_index=3, planned_in=2),
        runtime=SimpleNamespace(mode=SimpleNamespace(tries=lambda: None)),
        failpoints=SimpleNamespace(disarm=lambda: None),
        store=lambda generation: SimpleNamespace(call=None),
    )
    containment = SimpleNamespace(within_s=lambda limit_s: 2 * within_s)
    executor: Any = SimpleNamespace(containment=containment, longest_s=0.01)
    return Rehearsal(protected(worker), executor)


def test_what_the_plan_names_is_rehearsed() -> None:
    assert rehearsal(IDENTITY).is_wanted(IDENTITY)
    assert not rehearsal((0, 0)).is_wanted(IDENTITY)


def test_what_comes_to_its_end_says_nothing_and_leaves_nothing() -> None:
    done = list[int]()

    assert rehearsal().hold(IDENTITY, lambda: done.append(1)) == ""
    assert done == []


@pytest.mark.parametrize("error", [NotReplayable("random numbers move"), GivenUp("it would end")])
def test_what_is_refused_there_is_refused_here(error: NotReplayable) -> None:
    def attempt() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        rehearsal().hold(IDENTITY, attempt)

    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)


def test_any_other_error_is_no_end() -> None:
    def attempt() -> None:
        raise ValueError("bad record")

    assert rehearsal().hold(IDENTITY, attempt) == "ValueError: bad record"


@pytest.mark.parametrize(
    "end",
    [
        lambda: os.kill(os.getpid(), signal.SIGSEGV),
        lambda: os._exit(0),
        lambda: os.closerange(3, 1024),
    ],
    ids=["signal", "exit", "closed descriptors"],
)
def test_what_ends_a_copy_is_told(end: Any) -> None:
    assert rehearsal().hold(IDENTITY, end) == "a copy of this process was ended by it"


def test_what_does_not_end_is_told_in_time() -> None:
    why = rehearsal(within_s=0.3).hold(IDENTITY, lambda: time.sleep(WITHIN_S))

    assert "did not end within" in why


def test_each_time_has_a_place_of_its_own() -> None:
    """Of ranks that act alike: who comes there later finds no addresses of those before."""
    one, other = rehearsal(), rehearsal()
    places = [one._place(IDENTITY), one._place(IDENTITY), one._place((1, 1))]

    assert len(set(places)) == 3
    assert places == [other._place(IDENTITY), other._place(IDENTITY), other._place((1, 1))]
