"""Iterations of several loops under way: which may be executed again, and what each has left."""

from typing import Any

import pytest

from recoverrun.worker.replay.earlier_transactions import MOST, SETTLED
from recoverrun.worker.tracking.microbatches import LEVELS
from tests.unit.contexts import loop
from tests.unit.worker.replay.test_earlier_transactions import Script
from tests.unit.worker.tracking.test_loop_tracker import Play

pytestmark = pytest.mark.usefixtures("streams_put_back")

INNER, OUTER = "train.py:5", "train.py:1"


class Iteration:
    """One of a loop; another one of the same loop is another one, as with `Top`."""

    def __init__(self, name: str) -> None:
        self.loop = loop(name)


# --------------------------------------------------------------------------- under way


class Observed(Play):
    """The loops under way at each backward, by the function of the loop and its iteration."""

    def __init__(self, *regions: str) -> None:
        super().__init__()
        self.wanted = regions
        self.seen: list[list[tuple[int, int]]] = []

    def backward(self, item: Any) -> None:
        super().backward(item)
        runtime = self.runtime
        loops = [loop_frame.loop.id for loop_frame in runtime.stack]
        runtime.regions |= {loops[place] for place in map(int, self.wanted)}
        self.seen.append([(loops.index(t.loop.id), t.iteration) for t in runtime.under_way()])


@pytest.mark.parametrize(
    ("regions", "seen"),
    [
        ((), [[], [], [], []]),
        (("0",), [[(0, 0)], [(0, 0)], [(0, 1)], [(0, 1)]]),
        (("1",), [[(1, 0)], [(1, 1)], [(1, 0)], [(1, 1)]]),
        (("1", "0"), [[(0, n), (1, m)] for n in (0, 1) for m in (0, 1)]),
    ],
    ids=["none", "the outer loop's", "the inner loop's", "both, the outer one first"],
)
def test_iterations_of_loops_that_are_executed_again_are_under_way(
    regions: tuple[str, ...], seen: list[list[tuple[int, int]]]
) -> None:
    play = Observed(*regions)

    play.run("inner", [0, 1], [0, 1])

    assert play.seen == seen


def test_after_its_loop_nothing_is_under_way() -> None:
    play = Observed("0")
    play.run("flat", "ab")

    assert play.runtime.under_way() == []


# --------------------------------------------------------------------------- what each has left


def settled(*regions: str) -> Script:
    script = Script()
    for _ in range(SETTLED + 1):
        script.iterate(1, "before.py:1")
    script.earlier.regions = set(regions)
    return script


def nested(script: Script, *inner: int) -> list[tuple[Any, Any]]:
    """An outer iteration with so many transactions in each of the inner ones."""
    outer, made = Iteration(OUTER), list[tuple[Any, Any]]()
    passed = 0
    script.earlier.begins([outer])
    for count in inner:
        within = Iteration(INNER)
        script.earlier.begins([outer, within])
        for skip in range(count):
            script.transaction((within, skip), (outer, passed))
            made.append((within, outer))
            passed += 1
    return made


def given(script: Script, made: list[tuple[Any, Any]]) -> list[bool]:
    """Of each transaction: can who begins with the outer iteration pass over it?"""
    return [script.given(outer, place) is not None for place, (_, outer) in enumerate(made)]


@pytest.mark.parametrize(
    ("regions", "kept"),
    [
        ((OUTER,), [True, True, True, True]),
        ((INNER,), [False, False, True, True]),
        ((INNER, OUTER), [True, True, True, True]),
        ((), [False, False, False, False]),
    ],
    ids=["from the outer one", "from the inner one", "from both", "from none"],
)
def test_once_it_is_settled_what_was_left_is_kept_as_regions_want_it(
    regions: tuple[str, ...], kept: list[bool]
) -> None:
    script = settled(*regions)
    nested(script, 2, 2)  # now it is known that there are several

    assert given(script, nested(script, 2, 2)) == kept


def test_too_many_in_the_outer_one_are_not_kept_for_the_sake_of_inner_ones_that_are_over() -> None:
    """An epoch with a backward of its own, whose batches have two transactions each."""
    script = settled(INNER, OUTER)
    nested(script, 2, 2)

    nested(script, *[2] * 20)

    assert script.kept <= MOST


@pytest.mark.parametrize("first", [1, 2])
def test_as_long_as_it_is_not_settled_every_loop_keeps_its_own(first: int) -> None:
    script = Script()
    script.earlier.regions = ()

    made = nested(script, first, 2)

    assert script.ended <= SETTLED and given(script, made) == [True] * (first + 2)


@pytest.mark.parametrize("level", range(LEVELS + 1))
def test_loops_farther_around_than_any_that_is_executed_again_keep_nothing(level: int) -> None:
    script, tops = Script(), [Iteration(f"train.py:{line}") for line in range(LEVELS + 1)]
    script.transaction((Iteration("before.py:1"), 0))

    script.transaction(*((top, int(place == level)) for place, top in enumerate(tops)))
    script.transaction(*((top, 2 * int(place == level)) for place, top in enumerate(tops)))

    assert script.earlier._several.get(tops[level].loop.id, False) == (level < LEVELS)
