"""Copies of the script's plain iterators."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recoverrun.worker.context.iterator_copy import Uncopyable, copied_iterator, copied_iterators
from recoverrun.worker.data.generator_wrapper import same_kind

PLAIN: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([1, 2, 3, 4]),
    "tuple": lambda: iter((1, 2, 3, 4)),
    "range": lambda: iter(range(4)),
    "text": lambda: iter("abcd"),
    "dict": lambda: iter({1: 2, 3: 4, 5: 6}),
    "enumerate": lambda: enumerate([1, 2, 3, 4]),
    "zip": lambda: zip([1, 2, 3], iter("abc"), strict=True),
    "map": lambda: map(str, enumerate("abc")),
    "reversed": lambda: reversed([1, 2, 3]),
}
ITERTOOLS: dict[str, Callable[[], Iterator[Any]]] = {
    "islice": lambda: itertools.islice(iter(range(9)), 1, 5),
    "count": lambda: itertools.islice(itertools.count(), 4),
}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_copy_goes_on_and_the_original_stays(make: Callable[[], Iterator[Any]]) -> None:
    items = make()
    next(items)
    expected = list(make())[1:]

    copied = copied_iterator(items)

    assert list(copied) == expected
    assert list(items) == expected


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="itertools cannot be copied any more")
@pytest.mark.parametrize("make", ITERTOOLS.values(), ids=ITERTOOLS)
def test_copies_of_itertools(make: Callable[[], Iterator[Any]]) -> None:
    items = make()
    next(items)
    expected = list(make())[1:]

    copied = copied_iterator(items)

    assert list(copied) == expected
    assert list(items) == expected


def test_what_cannot_be_copied_is_bound() -> None:
    generator = (x for x in [1, 2])

    found = copied_iterators(
        {
            "alone": generator,
            "below": enumerate(generator),
            "chain": itertools.chain([1], iter([2])),  # what is still to come is shared
        }
    )

    assert all(isinstance(one, Uncopyable) for one in found.values())
    assert next(generator) == 1


def test_what_knows_of_ranks_or_is_no_iterator_is_left_alone() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    served = same_kind(numbers, numbers)()

    with open(os.devnull, "w") as log:
        assert copied_iterators({"feed": served, "list": [1], "number": 3, "log": log}) == {}


def test_a_generator_is_no_iterator_for_the_code_that_it_executes() -> None:
    def runs() -> Iterator[Any]:
        yield copied_iterators({"it": running})

    running = runs()

    assert next(running) == {}
    assert isinstance(copied_iterators({"it": running})["it"], Uncopyable)
