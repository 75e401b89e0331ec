"""Iterators that variables hold: how far they have come, and where their loader is."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader

from recoverrun.worker.arrival.iterator_places import (
    HeldIterator,
    at_path,
    held_iterator,
    items_given,
    loader_below,
)
from recoverrun.worker.data.loader_iterator import LoaderIterator
from tests.unit.loaders import LOADERS, ORIGINAL_ITER, OWN, Numbers, Play

OWN_MODULES = frozenset({__name__})


class Trainer:
    def __init__(self, loader: "DataLoader[Any]") -> None:
        self.loader = loader


def advanced(items: Any, count: int) -> Any:
    for _ in range(count):
        next(items)
    return items


@pytest.mark.parametrize(
    ("items", "count"),
    [
        (iter([1, 2, 3]), 2),
        (iter((1, 2, 3)), 1),
        (iter("abc"), 0),
        (enumerate("abc"), 2),
        (zip("abc", [1, 2, 3], strict=True), 2),
        (map(str, [1, 2, 3]), 1),
        (enumerate(zip("abc", "abc", strict=True)), 2),
    ],
)
def test_how_many_items_an_iterator_has_given(items: Any, count: int) -> None:
    assert items_given(advanced(items, count)) == count


@pytest.mark.parametrize(
    "value",
    [3, [1], "abc", itertools.chain("abc"), filter(None, "abc"), advanced((x for x in "abc"), 1)],
)
def test_what_does_not_know(value: Any) -> None:
    assert items_given(value) is None
    assert held_iterator(value, {}, OWN_MODULES) is None


def test_a_generator_that_has_not_begun_has_given_nothing() -> None:
    assert items_given(x for x in "abc") == 0


def test_an_iterator_over_a_loader_is_known_by_its_number_and_its_loader() -> None:
    loader = LOADERS["distributed"](Numbers(), OWN)
    one = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=4)
    advanced(one, 3)
    trainer = Trainer(loader)

    by_name = held_iterator(one, {"data": loader, "trainer": trainer}, OWN_MODULES)
    by_path = held_iterator(one, {"trainer": trainer}, OWN_MODULES)

    assert by_name == HeldIterator(4, ("data",), 3)
    assert by_path == HeldIterator(4, ("trainer", "loader"), 3)
    assert held_iterator(one, {}, OWN_MODULES) == HeldIterator(4, (), 3)
    assert HeldIterator.unpack(by_path.pack()) == by_path
    assert at_path(("data",), {"data": loader}) is loader
    assert at_path(("trainer", "loader"), {"trainer": trainer}) is loader
    assert at_path((), {"trainer": trainer}) is None


def ahead(items: Any) -> Iterator[Any]:
    """Not the script's own generator, and one item ahead."""
    waiting = next(items)
    for following in items:
        yield waiting
        waiting = following
    yield waiting


def a_loader_iterator(number: int) -> LoaderIterator:
    loader = LOADERS["distributed"](Numbers(), OWN)
    return LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=number)


def test_a_library_s_generator_is_as_far_as_what_it_goes_over() -> None:
    one = a_loader_iterator(5)
    items = ahead(one)
    assert loader_below(items) is one, "as its argument"
    advanced(items, 2)

    held = held_iterator(items, {}, OWN_MODULES)

    assert held is not None and (held.number, held.over, held.given) == (-1, 5, 3)
    assert held.at == items.gi_frame.f_lasti
    assert held.as_of(1) == HeldIterator(-1, (), 1, 5, -1)
    assert HeldIterator.unpack(held.pack()) == held


def test_it_is_found_below_iterators_of_python_s_own() -> None:
    one = a_loader_iterator(5)

    assert loader_below(ahead(enumerate(zip(one, "abc", strict=False)))) is one


def test_a_generator_over_two_or_none_is_not_known() -> None:
    two = zip(a_loader_iterator(5), a_loader_iterator(6), strict=True)
    ended = ahead(iter("a"))
    list(ended)

    assert loader_below(ahead(two)) is None
    assert loader_below(ended) is None
    assert loader_below(advanced(ahead(iter("abc")), 1)) is None
    assert loader_below(a_loader_iterator(5)) is None
