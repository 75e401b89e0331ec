"""Many things in messages of a bounded size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

ITEMS_MOST = 4096
"""Of one share: each is an object of its own to whoever reads the frame."""


def shares(items: Iterable[T], size_of: Callable[[T], int], most_bytes: int) -> Iterator[list[T]]:
    """`items` in order, in lists of at most `most_bytes`, or of one item; at least one list."""
    share: list[T] = []
    size = 0
    for item in items:
        weight = size_of(item)
        if share and (size + weight > most_bytes or len(share) == ITEMS_MOST):
            yield share
            share, size = [], 0
        share.append(item)
        size += weight
    yield share
