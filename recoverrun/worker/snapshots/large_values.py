"""Values that are too large to be told as plain ones (`arrival.plain_values`), and have no elements
that lie anywhere: long texts, bytes and tuples, dicts and sets with thousands of entries. Longer
dicts are loose values (`arrival.loose_values`).

A record of each sample's loss, or a text that grows, may decide what is trained on. The text or
tuple itself is remembered as the run began: another one is there once it has changed. Of dicts and
sets a number is remembered that their entries give. What has changed is told as a whole; what is
too much for that ends snapshots.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

from recoverrun.worker.arrival import content_marks, plain_values
from recoverrun.worker.arrival.new_objects import DICT
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain
from recoverrun.worker.arrival.plain_values import LONG_CONTAINER
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import LONG, Holdings
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.errors import NotReachable

TEXTS = (str, bytes)
MOST_TEXT = 1 << 26
"""Characters or bytes: a longer text is data."""

CHANGED = "{} has changed since the run began, and {}"
TOO_LARGE = "is too large for a snapshot"

_LEAST_TEXT = plain_values.MOST_BYTES // 4  # a character may have four bytes

Mark = tuple[Any, ...]
"""A text or tuple itself, or a number that the entries of a dict or set give."""


def marks(there: Holdings, spaces: Spaces) -> dict[Place, Mark]:
    return {key: _mark_of(value) for key, value in _all(there, spaces)}


def told(
    there: Holdings,
    spaces: Spaces,
    before: Mapping[Place, Mark],
    bound: Container[str],
    packing: Packing,
    *,
    whole: Container[str] = (),
) -> tuple[list[list[Plain]], list[list[Plain]]]:
    """Plain values for msgpack, of what has changed: those that objects and dicts hold, as
    `plain_values.put` takes them, and variables, as `rebound_variables.put` does. What loops have
    `bound` comes by itself, and what is at the paths `whole` as a plain value. Raises NotReachable.
    """
    held: list[list[Plain]] = []
    rebound: list[list[Plain]] = []
    dicts = dicts_of(there)
    for key, value in _all(there, spaces):
        (path, name), is_variable = key, key[0].startswith("<")
        if name is None and path in whole:
            continue
        known = before.get(key)
        if known is not None and _is_same(known, _mark_of(value)):
            continue
        if is_variable and (name in bound or known is None):
            continue
        where = str(name) if is_variable else path if name is None else f"{path}[{name!r}]"
        if type(value) in TEXTS and len(value) > MOST_TEXT:
            raise NotReachable(CHANGED.format(where, TOO_LARGE))
        try:
            plain = packing.pack(value, where)
        except CannotTravel as why:
            if type(value) in TEXTS or known is not None:
                raise NotReachable(CHANGED.format(where, why)) from why
            continue  # it is new, and holds objects: they are told by themselves
        if is_variable:
            rebound.append([path, name, plain])
        else:
            made = name is not None and path in dicts
            held.append([path, name, DICT if made else "", plain])
    return held, rebound


def dicts_of(there: Holdings) -> frozenset[str]:
    """The paths of dicts, which a process that has none there makes."""
    known = there.owners
    return frozenset(
        path for path, one in there.held if type(one) in DICTS and id(one) not in known
    )


def _all(there: Holdings, spaces: Spaces) -> Iterator[tuple[Place, Any]]:
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if _is_long(value) and not name.startswith("__"):
                yield (space, name), value
    for path, one, items, _ in there.holders:
        if path in plain_values.NOT_OURS:
            continue
        kind = type(one)
        if (kind in DICTS and LONG < len(one) <= LONG_CONTAINER) or (
            kind is set and LONG_CONTAINER < len(one)
        ):
            yield (path, None), one
        for name, value in items:
            if _is_long(value) and type(name) in plain_values.KEYS:
                yield (path, name), value


def _is_long(value: Any) -> bool:
    kind = type(value)
    return (kind in TEXTS and len(value) > _LEAST_TEXT) or (kind is tuple and len(value) > LONG)


def _mark_of(value: Any) -> Mark:
    if isinstance(value, dict):
        return content_marks.mark_of(value)
    if isinstance(value, set):
        return len(value), hash(frozenset(value))
    return (value,)


def _is_same(before: Mark, now: Mark) -> bool:
    return before[0] is now[0] if len(now) == 1 else before == now
