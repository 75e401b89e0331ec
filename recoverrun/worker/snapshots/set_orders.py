"""The order in which sets of numbers give what they hold.

It hangs on what a set has held before, too, and Python has no way to make another one like it. A
script that draws from a set (`rows.pop()`, `random.choice(list(rows))`) would draw others once all
have gone back, so a process where a set gives them in another order says so. Sets of texts have an
order of their own in each process.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from recoverrun.worker.arrival.plain_values import LONG_CONTAINER
from recoverrun.worker.context.object_graph import Holdings

ORDERS = "after this way back sets give what they hold in another order than before: {}"

NUMBERS = frozenset({int, float, bool})
SHOWN = 3


def told(there: Holdings) -> list[list[Any]]:
    """Each order as a number, by path: plain values for msgpack."""
    return [[path, order_of(one)] for path, one in _sets(there)]


def changed(told: Sequence[Sequence[Any]], there: Holdings) -> str:
    """A sentence if some set gives what it holds in another order than `told`, else ""."""
    here = {path: order_of(one) for path, one in _sets(there)}
    found = [path for path, order in told if here.get(path, order) != order]
    more = [] if len(found) <= SHOWN else [f"{len(found) - SHOWN} more"]
    return ORDERS.format(", ".join([*found[:SHOWN], *more])) if found else ""


def order_of(one: set[Any]) -> int:
    """Sets of one size that have had more room differ in what they give once they change."""
    return hash((sys.getsizeof(one), *one))


def _sets(there: Holdings) -> Iterator[tuple[str, set[Any]]]:
    for path, one in there.held:
        if path and type(one) is set and 1 < len(one) <= LONG_CONTAINER:
            if NUMBERS.issuperset(map(type, one)):
                yield path, one
