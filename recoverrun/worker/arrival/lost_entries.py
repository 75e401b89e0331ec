"""Entries that dicts, and attributes that objects of the script have lost since the run began.

A pool that the script takes from, an attribute that it deletes: a process that goes back, or comes
back, has made all of it anew, so what was lost is told by its path and key, and taken away there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from recoverrun.worker.arrival.packing import Plain
from recoverrun.worker.arrival.plain_values import NOT_OURS
from recoverrun.worker.context.object_graph import HOOKS, LONG, Holdings
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import named_in
from recoverrun.worker.context.tensor_attributes import TensorAttributes

Keys = Mapping[str, frozenset[int | str]]
"""The keys of each dict, by its path."""


def keys_of(there: Holdings) -> Keys:
    """The present ones. Those of a dict that is found by two paths are known by the first."""
    found: dict[str, frozenset[int | str]] = {}
    for path, one in there.held:
        if not path or path in NOT_OURS or path.endswith(HOOKS):
            continue
        if _is_looked_into(one):
            found.setdefault(path, frozenset(filter(_is_told, list(one))))
    return found


def told(there: Holdings, before: Keys) -> list[list[Plain]]:
    """Plain values for msgpack: path and key of each that is missing."""
    found = reversed(there.held)
    now = {path: one for path, one in found if path in before and _is_looked_into(one)}
    return [
        [path, key]
        for path, keys in before.items()
        if keys and (one := now.get(path)) is not None
        for key in lost(sorted(keys, key=repr), one)
    ]


def lost(before: Iterable[int | str], now: Collection[Any]) -> list[int | str]:
    """The keys of one dict that are missing `now`."""
    return [key for key in before if key not in now]


def take_away(told_ones: Iterable[Sequence[Any]], there: Holdings) -> None:
    holders = {path: one for path, one in reversed(there.held) if path}
    for path, key in told_ones:
        if _is_looked_into(one := holders.get(path)):
            named_in(one).pop(key, None)


def _is_looked_into(one: Any) -> bool:
    return type(one) in (*DICTS, TensorAttributes) and len(one) <= LONG


def _is_told(key: Any) -> bool:
    return type(key) is int or (type(key) is str and not key.startswith("__"))
