"""Loops of generators that train: they wait, and go on where they waited."""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.tracking.loop_frames import ASLEEP, LoopStack
from recoverrun.worker.tracking.microbatches import LoopFrame
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


# ------------------------------------------------------------------------- numbers of iterations


class Numbers:
    """Loops of one function, each from its first line to its last one."""

    def __init__(self) -> None:
        self.stack = LoopStack()

    def begin(self, first: int, last: int) -> LoopFrame:
        loop: Any = SimpleNamespace(line=first, last_line=last, waits=(), id=f"train.py:{first}")
        loop_frame = LoopFrame(loop, frame_id=1)
        self.stack.stack.append(loop_frame)
        return loop_frame


def test_iterations_are_numbered_through_the_loops_around_them() -> None:
    numbers = Numbers()
    numbers.begin(1, 9)
    outer = numbers.stack.attempt()
    numbers.begin(5, 8)

    assert (outer, [numbers.stack.attempt() for _ in range(3)]) == (0, [1, 2, 3])
    assert numbers.stack.number() == 3


@pytest.mark.parametrize("left", ["ended", "left by break"])
def test_what_one_rank_has_gone_through_alone_does_not_count(left: str) -> None:
    numbers = Numbers()
    numbers.begin(1, 9)
    numbers.stack.attempt()
    alone = numbers.begin(2, 4)
    for _ in range(3):
        numbers.stack.attempt()
    if left == "ended":
        numbers.stack.pop(alone)
    numbers.begin(5, 8)

    assert numbers.stack.attempt() == 1


def test_after_a_backward_they_begin_anew() -> None:
    numbers = Numbers()
    numbers.begin(1, 9)
    numbers.stack.attempt()
    numbers.begin(5, 8)
    numbers.stack.attempt()
    numbers.stack.begin_counts()

    assert [numbers.stack.attempt() for _ in range(2)] == [0, 1]


def test_a_process_that_begins_where_others_are_has_their_number() -> None:
    others, newcomer = Numbers(), Numbers()
    for one in (others, newcomer):
        one.begin(1, 9)
        one.stack.attempt()
        one.begin(5, 8)
    others.stack.begin_counts()
    for _ in range(3):
        others.stack.attempt()

    newcomer.stack.tell(others.stack.number())

    assert newcomer.stack.attempt() == others.stack.number() == 2
    assert newcomer.stack.attempt() == others.stack.attempt()
