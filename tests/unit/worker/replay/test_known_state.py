"""Values of a lost rank, as ours go on: they begin anew, grow, or become too many to be known."""

from typing import Any

import pytest
import torch

from recoverrun.worker.context.member_views import ORDER
from recoverrun.worker.replay.known_state import (
    OTHER,
    differing,
    ended_otherwise,
    is_zero_or_empty,
    merged,
)
from recoverrun.worker.replay.poison import LARGE
from tests.unit.contexts import at


@pytest.mark.parametrize(
    ("value", "nothing"),
    [
        (0, True),
        ("", True),
        ([], True),
        (None, True),
        (torch.zeros(3), True),
        ((torch.zeros(2), torch.zeros(2)), True),
        ([[0, 0.0], ()], True),
        ((torch.zeros(2), torch.ones(2)), False),
        ([0, 1], False),
        ("a", False),
    ],
)
def test_counters_and_states_of_recurrent_networks_begin_with_nothing(
    value: Any, nothing: bool
) -> None:
    assert is_zero_or_empty(value) is nothing


@pytest.mark.parametrize("known", [True, False])
def test_the_state_of_a_recurrent_network_is_known_where_it_begins_anew(known: bool) -> None:
    """As each epoch begins, and though ranks differed in it."""
    before, anew, theirs = ({"hidden": (torch.full((2,), one),)} for one in (1.0, 0.0, 2.0))

    values, unknown = merged(
        before, anew, theirs, begins=lambda key, now: known and is_zero_or_empty(now)
    )

    assert unknown == (set() if known else {"hidden"})
    assert (values["hidden"] is anew["hidden"]) is known


LOG = ("state", "log")
KEYS, ONE, TWO, LARGE_ONE = (*LOG, ORDER), (*LOG, "[1]"), (*LOG, "[2]"), ("state", "log#")


@pytest.mark.parametrize(
    ("theirs", "expected", "unknown"),
    [
        (0.7, {KEYS: [1], ONE: 0.7}, {KEYS}),  # a rank's own: what it gained is not known
        (0.5, {KEYS: [1, 2], ONE: 0.5, TWO: 0.6}, set()),  # what ranks have in common grows alike
    ],
)
def test_a_dict_gains_a_rank_s_own_values_or_common_ones(
    theirs: float, expected: dict[Any, Any], unknown: set[Any]
) -> None:
    before, after = {KEYS: [1], ONE: 0.5}, {KEYS: [1, 2], ONE: 0.5, TWO: 0.6}

    assert merged(before, after, {KEYS: [1], ONE: theirs}) == (expected, unknown)


def test_entries_that_another_rank_has_not_yet_tell_nothing_of_a_cache() -> None:
    """A data set that keeps rows: each rank has read other ones."""
    before, after = {KEYS: [1], ONE: 0.5}, {KEYS: [1, 2], ONE: 0.5, TWO: 0.6}

    values, _ = merged(before, after, {KEYS: [3], (*LOG, "[3]"): 0.7})

    assert values[TWO] == 0.6


@pytest.mark.parametrize("small", [{KEYS: [1], ONE: 0.5}, {LOG: [0.5]}])
@pytest.mark.parametrize(("other", "mark"), [(0.7, OTHER), (0.5, "dict 65 abc")])
def test_what_becomes_large_is_another_rank_s_if_it_was_when_it_was_small(
    small: dict[Any, Any], other: float, mark: str
) -> None:
    theirs = {key: [other] if key == LOG else other for key in small if key != KEYS}

    values, unknown = merged(small, {LARGE_ONE: "dict 65 abc"}, theirs)

    assert (values, unknown) == ({LARGE_ONE: mark}, set())


@pytest.mark.parametrize("small", [{KEYS: [1], ONE: 0.5}, {LOG: [0.5]}])
def test_what_is_large_on_another_rank_alone_differs(small: dict[Any, Any]) -> None:
    theirs, mine = (at(0, attributes=one) for one in ({LARGE_ONE: "dict 65 abc"}, small))

    assert differing(theirs, mine) == {LARGE_ONE: "dict 65 abc"}
    assert differing(theirs, at(0)) == {}


@pytest.mark.parametrize(
    ("told", "truth", "talked", "found"),
    [
        ({"x": 1}, {"x": 2}, False, ["x"]),
        ({"x": 1}, {"x": 1}, False, []),
        ({"x": float("nan")}, {"x": 0.5}, True, []),  # made of a false answer
        ({"x": torch.ones(3)}, {"x": torch.zeros(3)}, True, ["x"]),  # a batch is none
        ({"x": torch.full((3,), torch.nan)}, {"x": torch.ones(3)}, True, []),
        ({"x": torch.full((3,), -LARGE / 2)}, {"x": torch.ones(3)}, True, []),
        ({"x": torch.tensor([True, False])}, {"x": torch.tensor([True, True])}, True, ["x"]),
        ({"x": 1}, {"x": 0}, False, []),  # as it began: the rank itself did not move it
        ({"time": 1.0}, {"time": 2.0}, False, []),  # nothing reads it
    ],
)
def test_values_that_another_rank_ended_with_otherwise(
    told: dict[str, Any], truth: dict[str, Any], talked: bool, found: list[str]
) -> None:
    one, other = at(0, 0, "after", names=told), at(0, 0, "after", names=truth)
    began = at(0, names={"x": 0})

    assert ended_otherwise(one, began, other, lambda key, _: key == "x", talked=talked) == found


def test_an_attribute_that_no_execution_moves_is_no_difference() -> None:
    held, place = ("trainer", "current"), {"x": 0}
    began = at(0, names=place).with_values({"x": 0, held: None})
    here = at(0, 0, "after", names=place).with_values({"x": 0, held: None})
    there = at(0, 0, "after", names=place).with_values({"x": 0, held: "training_step"})

    assert ended_otherwise(here, began, there, lambda key, _: True, talked=False) == []
    moved = here.with_values({"x": 0, held: "validation_step"})
    assert ended_otherwise(moved, began, there, lambda key, _: True, talked=False) == [held]
