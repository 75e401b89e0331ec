"""Generators that give on the items of a loop without a look at them."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from recoverrun.worker.data.handed_items import gives_on


def timed(items: Iterable[Any]) -> Iterator[Any]:
    passed = 0
    for item in items:
        passed += 1
        yield item
        print(passed)


def numbered(items: Iterable[Any]) -> Iterator[Any]:
    number = 0
    for item in items:
        yield number, item
        number += 1


def moved(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        yield item * 2


def counted(items: Iterable[Any]) -> Iterator[Any]:
    total = 0
    for item in items:
        total += len(item)
        yield item


def kept(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        yield item
    print(item)


def closed_over(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        print(lambda: item)  # noqa: B023 - the shape that is meant


def seen_by_all(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        print(locals())


def unpacked(items: Iterable[Any]) -> Iterator[Any]:
    for left, right in items:
        yield left, right
        print("passed")


class Asked:
    """An iterable that notes what it hears of the code that asks for an item."""

    said: bool | None = None

    def __iter__(self) -> "Asked":
        return self

    def __next__(self) -> Any:
        frame = sys._getframe(1)
        self.said = gives_on(frame.f_code, frame.f_lasti)
        return [1, 2]


@pytest.mark.parametrize(
    ("generator", "expected"),
    [
        (timed, True),
        (numbered, True),
        (moved, False),
        (counted, False),
        (kept, False),
        (closed_over, False),
        (seen_by_all, False),
        (unpacked, False),
    ],
)
def test_an_item_that_is_only_given_on_is_not_looked_at(
    generator: Callable[[Iterable[Any]], Iterator[Any]], expected: bool
) -> None:
    asked = Asked()

    next(generator(asked))

    assert asked.said is expected
