"""Values that code between a backward and the next iteration has made on a lost rank."""

from typing import Any

import pytest

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.replay.lost_rank import LostRank
from tests.unit.contexts import at

pytestmark = pytest.mark.usefixtures("streams_put_back")

MEAN = ("state", "mean")


def ended(mean: float, told: dict[Any, Any]) -> Context:
    return at(3, 0, "after", attributes={MEAN: mean}, behind=told)


@pytest.mark.parametrize(
    ("told", "own", "now", "expected"),
    [
        ({MEAN: 5.0}, {MEAN: 2.0}, 2.0, 5.0),  # ours came out as it was told
        ({MEAN: 5.0}, {MEAN: 2.0}, 2.5, None),  # other code has written to it here
        ({MEAN: 5.0}, {}, 2.0, None),  # nothing was told of ours
        ({}, {MEAN: 2.0}, 2.0, None),  # nothing was told of theirs
    ],
)
def test_it_is_what_was_told_if_ours_is(
    told: dict[Any, float], own: dict[Any, float], now: float, expected: float | None
) -> None:
    lost, mine = LostRank(1, apart=False), ended(1.0, own)
    lost.learn(ended(4.0, told), mine)
    top = at(4, attributes={MEAN: now})

    state = lost.at(top.point, [mine, top])

    if expected is None:
        assert state.unknown == {MEAN}
    else:
        assert state.context.values[MEAN] == expected and not state.unknown


def test_it_is_known_again_once_it_is_told() -> None:
    lost, mine = LostRank(1, apart=False), ended(1.0, {MEAN: 2.0})
    lost.learn(ended(4.0, {MEAN: 5.0}), mine, lacking=(frozenset({MEAN}), ""))
    top = at(4, attributes={MEAN: 2.0})

    assert not lost.at(top.point, [mine, top]).unknown


def test_across_a_microbatch_that_another_executes_nothing_is_told() -> None:
    lost, mine = LostRank(1, apart=False), at(3, attributes={MEAN: 1.0})
    lost.learn(at(3, attributes={MEAN: 4.0}), mine)
    after, top = ended(1.0, {MEAN: 2.0}), at(3, 1, attributes={MEAN: 2.0})

    assert lost.at(top.point, [mine, after, top]).unknown == {MEAN}


def test_it_travels() -> None:
    context = ended(1.0, {MEAN: 5.0, "at": 3})

    assert Context.unpack(context.pack()).behind == {MEAN: 5.0, "at": 3}
