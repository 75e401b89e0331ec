"""The order in which dicts give what they hold.

Entries come by several ways: plain values first, then tensors and objects. A script that goes over
a dict may add in that order, so it is told of each that has other keys than as the run began.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recoverrun.worker.arrival.packing import Packing, Plain
from recoverrun.worker.arrival.plain_values import HOOKS, KEYS, NOT_OURS, OF_MODULES
from recoverrun.worker.arrival.structure import arrange
from recoverrun.worker.context.object_graph import LONG, Holdings
from recoverrun.worker.context.object_members import DICTS

Orders = Mapping[str, tuple[Any, ...]]
"""The keys of dicts, by their paths."""


def orders_of(there: Holdings) -> Orders:
    return {path: tuple(one) for path, one in reversed(list(_all(there)))}


def told(there: Holdings, before: Orders, packing: Packing) -> list[list[Plain]]:
    """Plain values for msgpack. Keys that are `id`s of parameters are others in each process."""
    found: dict[str, list[Plain]] = {}
    for path, one in _all(there):
        keys = tuple(one)
        if before.get(path) == keys or len(keys) < 2:
            continue
        if all(type(key) in KEYS and packing.with_id(key) is None for key in keys):
            found.setdefault(path, [path, list(keys)])
    return list(found.values())


def put(told_ones: Sequence[Sequence[Any]], there: Holdings) -> None:
    holders = {path: one for path, one in reversed(there.held) if path}
    for path, keys in told_ones:
        one: Any = holders.get(path)
        if type(one) in DICTS and [key for key in one if key in set(keys)] != keys:
            arrange(one, keys)


def _all(there: Holdings) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Those whose entries have names; attributes of objects have no order that matters, nor have
    variables of modules.
    """
    for path, one, _, _ in there.holders:
        if type(one) in DICTS and len(one) <= LONG and id(one) not in there.owners:
            if path not in NOT_OURS and not path.endswith((*HOOKS, *OF_MODULES)):
                if "__name__" not in one:
                    yield path, one
