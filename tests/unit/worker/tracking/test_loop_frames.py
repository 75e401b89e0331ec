"""Loops of generators that train: they wait, and go on where they waited."""

import pytest

from recoverrun.worker.tracking.loop_frames import ASLEEP
from tests.unit.worker.tracking.test_loop_tracker import Play, Where, where

pytestmark = pytest.mark.usefixtures("streams_put_back")


def ask(play: Play, function: str, between: str) -> list[Where]:
    """Go through a generator that trains, and through other loops between its items."""
    for _ in getattr(play.script, function)("ab", play.backward):
        if between:
            getattr(play.script, between)("x", lambda _: None)
    return [where(one) for one in play.noted if one is not None]


@pytest.mark.parametrize("between", ["", "flat", "yielding"])
def test_loops_of_a_generator_go_on_where_they_waited(between: str) -> None:
    play = Play()

    assert [[part[1:] for part in one] for one in ask(play, "yielding", between)] == [
        [(0, 0), (0, 0)],
        [(1, 0), (0, 1)],
        [(0, 0), (1, 0)],
        [(1, 0), (1, 1)],
    ]
    assert not any(place.refusal for one in play.runtime.microbatches for place in one.places)


@pytest.mark.parametrize("between", ["", "flat"])
def test_a_while_of_a_generator_goes_on_where_it_waited(between: str) -> None:
    assert ask(Play(), "whiling", between) == [[("whiling", 0, 0)], [("whiling", 1, 0)]]


def test_what_comes_behind_a_place_where_the_script_waits_is_refused() -> None:
    play = Play()

    ask(play, "before", "")

    reasons = [one.place.refusal for one in play.runtime.microbatches]
    assert len(reasons) == 2 and all("waits here (yield)" in reason for reason in reasons)


def test_generators_that_were_dropped_are_forgotten() -> None:
    play = Play()

    for _ in range(3 * ASLEEP):
        kept = play.script.yielding("ab", play.backward)
        next(kept)
        play.script.flat("x", lambda _: None)

    assert len(play.runtime.loop_stack._asleep) == ASLEEP
