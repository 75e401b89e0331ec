"""Loops that do not train: looked at for a while, then no more."""

from collections.abc import Callable
from typing import Any

import pytest

from recoverrun.worker.tracking import idle_loops
from recoverrun.worker.tracking.microbatches import Top
from tests.unit.worker.tracking.test_loop_tracker import Play, where

pytestmark = pytest.mark.usefixtures("streams_put_back")

BOUND = 20


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_loops, "BEFORE_TRAINING", BOUND)


def trained(trains: Any) -> tuple[Play, list[Top], Callable[[Any], None]]:
    """A script that trains with the item `trains` only; the tops that it has looked at."""
    play, tops = Play(), list[Top]()
    play.runtime.on_top = tops.append
    return play, tops, lambda item: play.backward(item) if item == trains else None


@pytest.mark.usefixtures("_short")
def test_a_loop_that_warms_up_before_it_trains_is_served() -> None:
    play, tops, backward = trained(BOUND - 1)
    play.script.flat(range(BOUND), backward)

    assert [one is not None for one in play.noted] == [True]
    assert len(tops) == BOUND


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(
    ("function", "args", "trains"),
    [("flat", (), 5 * BOUND), ("inner", (range(4),), (5 * BOUND, 0))],
    ids=["loop", "inner"],
)
def test_one_that_goes_on_and_on_is_looked_at_no_more(
    function: str, args: tuple[Any, ...], trains: Any
) -> None:
    play, tops, backward = trained(trains)
    whys: list[str] = []

    def told(item: Any) -> None:
        backward(item)
        if item == trains:
            whys.append(play.runtime.why_no_loop())

    getattr(play.script, function)(range(6 * BOUND), *args, told)

    assert play.noted == [None]
    assert f"went round {BOUND} times before it first trained" in whys[0]
    assert len(tops) <= 2 * BOUND


@pytest.mark.usefixtures("_short")
def test_a_loop_that_trains_is_served_after_others_went_on_and_on() -> None:
    play, _, backward = trained(1)
    play.script.inner(range(5 * BOUND), range(4), lambda item: None)
    play.script.flat(range(3), backward)

    assert [one is not None for one in play.noted] == [True]


def test_a_loop_within_one_that_trains_is_looked_at_for_a_short_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_loops, "WITHIN_TRAINING", 2)
    play, tops = Play(), list[Top]()
    play.runtime.on_top = tops.append

    def trains_within(item: Any) -> None:
        play.backward(item)
        play.script.inner([item], range(3), lambda one: one == (5, 1) and play.backward(one))

    play.script.flat(range(7), trains_within)

    within = [one for one in tops if one.loop.qualname == "inner"]
    in_last_item = 1 + 3  # of both loops: a backward was seen in them
    assert len(within) == 2 + 2 + in_last_item
    assert [where(one) for one in play.noted[5:8] if one is not None] == [
        [("flat", 5, 0)], [("flat", 5, 1)], [("flat", 6, 0)]
    ]  # fmt: skip
