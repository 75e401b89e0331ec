"""Iterators of Python's own, within a generator, are brought to where they were."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival import inner_iterators
from recoverrun.worker.errors import NotReachable


def given(iterator: Any, count: int) -> Any:
    for _ in range(count):
        next(iterator)
    return iterator


def over(iterator: Iterator[Any]) -> Iterator[Any]:
    yield from iterator


def test_those_below_others_are_found_in_their_order() -> None:
    first, second = iter([1, 2]), iter({3: 4})
    numbered = enumerate(second)
    both = zip(first, numbered, strict=True)

    found = inner_iterators.below(given(over(both), 1))

    assert found[0] is both
    assert list(map(id, found)) == list(map(id, (both, first, numbered, second)))


@pytest.mark.parametrize(("then", "now"), [
    (iter([5, 6, 7, 8]), iter([6, 8, 7, 5])), (iter(range(9)), iter(range(9))),
    (iter(dict.fromkeys(range(5))), iter(dict.fromkeys(range(5)))), (iter("abcd"), iter("abcd")),
    (reversed([1, 2, 3]), reversed([1, 2, 3])),
    (iter(torch.arange(4)), iter(torch.tensor([3, 2, 1, 0]))),
])  # fmt: skip
def test_a_fresh_one_goes_on_as_the_other_one(then: Any, now: Any) -> None:
    place = inner_iterators.place_of(given(then, 2))

    inner_iterators.move(now, place)

    assert list(now) == list(then)


@pytest.mark.parametrize(("then", "now"), [
    (reversed([1, 2]), given(reversed([1, 2]), 2)), (iter((1, 2)), iter((2, 1))),
    (given(enumerate("ab"), 1), enumerate("ab")), (iter(b"ab"), iter(b"ba")),
    (given(iter({1, 2}), 1), given(iter({1, 2}), 2)), (iter((1, 2)), iter((1, 2, 3))),
])  # fmt: skip
def test_what_cannot_be_brought_there_is_refused(then: Any, now: Any) -> None:
    with pytest.raises(NotReachable, match="cannot be brought to where it was"):
        inner_iterators.move(now, inner_iterators.place_of(then))


def test_one_over_a_range_goes_back_where_python_knows_what_it_gave() -> None:
    now = given(iter(range(9)), 3)
    place = inner_iterators.place_of(given(iter(range(9)), 1))

    if sys.version_info < (3, 12):
        inner_iterators.move(now, place)
        assert list(now) == [1, 2, 3, 4, 5, 6, 7, 8]
    else:
        with pytest.raises(NotReachable, match="cannot be brought to where it was"):
            inner_iterators.move(now, place)


def test_items_that_are_alike_are_those_that_are_there() -> None:
    rows = [[1], [2]]
    now, (row, _) = iter(rows), rows

    inner_iterators.move(now, [1, 1, [[1], [2]]])

    assert rows[0] is row
    assert next(now) is rows[1]
