"""What a survivor would not have known of a lost rank, one step later."""

from typing import Any

import pytest

from recoverrun.hooks import rng
from recoverrun.hooks.context import Context, Key, Kind
from recoverrun.hooks.heritage import Heritage, parted


def at(step: int, kind: Kind, **attributes: Any) -> Context:
    return Context(
        step=step,
        attempt=0,
        kind=kind,
        loop="train.py:1",
        streams=rng.read(),
        attributes={("meter", name): value for name, value in attributes.items()},
    )


def _unforeseen(theirs: tuple[Any, Any], mine: tuple[Any, Any, Any]) -> frozenset[Key]:
    """`theirs` at the end of a step and at the next top; `mine` at the top before, and there."""
    top, ahead, now = (
        at(1, "top", value=mine[0]),
        at(2, "ahead", value=mine[1]),
        at(2, "top", value=mine[2]),
    )
    heir = Heritage(rank=1, theirs=at(2, "ahead", value=theirs[0]), mine=ahead)
    heir.part([top, ahead, now], lambda key, value: True, lambda key: False)
    return heir.unforeseen(now, at(2, "top", value=theirs[1]), lambda key, value: True)


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ((7.0, 7.0), (1.0, 2.0, 2.0)),  # moves within steps: its chain tells
        ((7.0, 7.0), (2.0, 2.0, 2.0)),  # never moves
        ((2.0, 3.0), (1.0, 2.0, 3.0)),  # moves alike
        ((3.0, 3.0), (1.0, 2.0, 3.0)),  # comes out alike
    ],
)
def test_a_value_that_is_told_right(theirs: tuple[Any, Any], mine: tuple[Any, Any, Any]) -> None:
    assert not _unforeseen(theirs, mine)


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ((0.12, 0.13), (0.10, 0.11, 0.15)),  # a stopwatch
        ((2.0, 9.0), (2.0, 2.0, 2.0)),  # it alone does something between steps
        ((2.0, 9.0), (1.0, 2.0, 3.0)),
        ((7.0, 3.0), (1.0, 3.0, 3.0)),
    ],
)
def test_a_value_that_would_have_been_told_wrong(
    theirs: tuple[Any, Any], mine: tuple[Any, Any, Any]
) -> None:
    assert _unforeseen(theirs, mine) == {("meter", "value")}


def test_the_sentence_names_the_first_few() -> None:
    assert parted(["x"], "between steps") == "x differs between ranks and moves between steps"
    assert (
        parted(["x", ("meter", "value"), "y", "z"], "between steps")
        == "x, meter.value, y and more differ between ranks and move between steps"
    )
