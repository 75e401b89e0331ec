"""Another rank's batch in the place of this rank's, in what a loop gives to the script.

A loop's item may be what a loader gave, hold it (as `enumerate` and `zip` do), or be a copy of it
on another device. Each part that a loader gave is replaced by what it gives another rank.
"""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from recoverrun.worker.data.source import Draw
from recoverrun.worker.errors import NotReplayable

ATOMS = (bool, int, float, str, bytes, type(None))
"""Python shares these objects: a count of `enumerate` may be the very number that a loader gave."""

DEPTH = 2
"""How deep in an item a copy of what was drawn is searched for, as in `(number, batch)`."""

LONG = 1 << 10
"""Entries of what holds no batches."""


def contains(item: Any, drawn: Any) -> bool:
    """True if `drawn` itself or a part of it is in `item`."""
    return not _parts(item).isdisjoint(_parts(drawn))


def parts_of(items: Iterable[Any]) -> frozenset[int]:
    """The identities of all parts of these items: `contains` for many."""
    return frozenset().union(*map(_parts, items))


def holds_part(item: Any, parts: Container[int], depth: int = 2 * DEPTH) -> bool:
    """True if `item` is one of these parts, by identity, or holds one; long ones are not read."""
    if id(item) in parts:
        return True
    if not depth or not issubclass(type(item), dict | list | tuple | deque) or len(item) > LONG:
        return False
    inner = item.values() if isinstance(item, dict) else item
    return any(holds_part(one, parts, depth - 1) for one in inner)


def items_in_memory(iterable: Any, depth: int = DEPTH) -> list[Any]:
    """Return the items of `iterable` that are in memory already.

    That is so for a list, and for Python's own iterators around one, such as `enumerate(batches)`.
    """
    if type(iterable) in (list, tuple):
        return list(iterable)
    if depth and type(iterable).__module__ == "builtins" and hasattr(iterable, "__next__"):
        try:
            inner = iterable.__reduce__()[1]
        except TypeError:  # a generator
            return []
        return [item for part in inner for item in items_in_memory(part, depth - 1)]
    return []


def dicts_in(items: Iterable[Any]) -> frozenset[int]:
    """Return the identities of all dicts in `items`."""
    identities: set[int] = set()
    todo = [(item, DEPTH) for item in items]
    while todo:
        item, depth = todo.pop()
        if type(item) is dict:
            identities.add(id(item))
        if depth and isinstance(item, dict | list | tuple):
            inner = item.values() if isinstance(item, dict) else item
            todo += [(part, depth - 1) for part in inner]
    return frozenset(identities)


def draws_in(items: Sequence[Any], draws: Sequence[Draw]) -> list[Draw]:
    """Return those of `draws` that `items` hold; the latest ones if `items` may be copies."""
    parts = set[int]().union(*map(_parts, items))
    held = [draw for draw in draws if not parts.isdisjoint(_parts(draw.item))]
    if held or not any(_has_tensor(item, DEPTH) for item in items[:1]):
        return held
    return list(draws[-len(items) - 1 :])  # a loader may be read one ahead


def _has_tensor(item: Any, depth: int) -> bool:
    if isinstance(item, torch.Tensor):
        return True
    inner = item.values() if isinstance(item, dict) else item
    nested = depth and isinstance(item, dict | list | tuple)
    return bool(nested) and any(_has_tensor(part, depth - 1) for part in inner)


def pairs_for_rank(item: Any, draws: Sequence[Draw], rank: int) -> list[tuple[Any, Any]]:
    """Return the items of `draws` that `item` holds, each with what `rank` would have drawn.

    Raises NotReplayable.
    """
    parts = _parts(item)
    held = [draw for draw in draws if not parts.isdisjoint(_parts(draw.item))]
    held = held or [draw for draw in draws if _has_copy(item, draw.item, DEPTH)]
    try:
        return [(draw.item, draw.source.serve(rank, draw.index)) for draw in held]
    except StopIteration:
        raise NotReplayable(f"rank {rank} has run out of data, and this rank has not") from None


def _has_copy(item: Any, drawn: Any, depth: int) -> bool:
    if _is_copy(item, drawn):
        return True
    inner = item.values() if isinstance(item, dict) else item
    nested = depth and isinstance(item, dict | list | tuple)
    return bool(nested) and any(_has_copy(part, drawn, depth - 1) for part in inner)


def _is_copy(item: Any, drawn: Any) -> bool:
    """True if `item` has the values and the structure of `drawn`, perhaps on another device."""
    if isinstance(item, torch.Tensor) and isinstance(drawn, torch.Tensor):
        alike = item.shape == drawn.shape and item.dtype == drawn.dtype and item.numel() > 0
        return alike and torch.equal(item.detach().cpu(), drawn.detach().cpu())
    if isinstance(item, dict) and isinstance(drawn, dict):
        return (
            item.keys() == drawn.keys()
            and bool(item)
            and all(_is_same(item[key], drawn[key]) for key in item)
        )
    if isinstance(item, list | tuple) and isinstance(drawn, list | tuple):
        return len(item) == len(drawn) > 0 and all(map(_is_same, item, drawn))
    return False


def _is_same(item: Any, drawn: Any) -> bool:
    if isinstance(item, ATOMS):
        return type(item) is type(drawn) and bool(item == drawn)
    return item is drawn or _is_copy(item, drawn)


def _on_device_of(item: Any, mine: Any, theirs: Any) -> Any:
    """Return `theirs` on the devices of `item`, which is a copy of `mine`."""
    if isinstance(item, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return theirs.to(item.device)
    if isinstance(item, dict) and isinstance(theirs, dict):
        return {key: _on_device_of(item[key], mine[key], theirs[key]) for key in item}
    if isinstance(item, list | tuple) and isinstance(theirs, list | tuple):
        parts = [_on_device_of(*three) for three in zip(item, mine, theirs, strict=True)]
        if isinstance(item, list):
            return parts
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return theirs


def _parts(item: Any) -> set[int]:
    """Return the identities of `item` and of all its parts."""
    if isinstance(item, ATOMS):
        return set()
    inner = item.values() if isinstance(item, dict) else item
    nested = isinstance(item, dict | list | tuple)
    return {id(item)}.union(*map(_parts, inner)) if nested else {id(item)}


def substituted(item: Any, drawn: Sequence[tuple[Any, Any]]) -> Any:
    """Return `item` with the first of each pair in `drawn`, and its parts, replaced by the second.

    Returns `item` itself if it holds nothing of the kind.
    """
    replaced: dict[int, Any] = {}
    for mine, theirs in drawn:
        if item is mine:
            return theirs
        _pair(mine, theirs, replaced)
        _pair_copies(item, mine, theirs, replaced, DEPTH)
    return _substitute(item, replaced) if replaced else item


def _pair(mine: Any, theirs: Any, replaced: dict[int, Any]) -> None:
    """Map an item and its parts to those of another rank's item of the same structure."""
    if isinstance(mine, ATOMS):
        return
    replaced[id(mine)] = theirs
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in mine:
            if key in theirs:
                _pair(mine[key], theirs[key], replaced)
    elif isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        for parts in zip(mine, theirs, strict=False):
            _pair(*parts, replaced)


def _pair_copies(item: Any, mine: Any, theirs: Any, replaced: dict[int, Any], depth: int) -> None:
    """Map every copy of `mine` in `item`."""
    if _is_copy(item, mine):
        replaced.setdefault(id(item), _on_device_of(item, mine, theirs))
    elif depth and isinstance(item, dict | list | tuple):
        for part in item.values() if isinstance(item, dict) else item:
            _pair_copies(part, mine, theirs, replaced, depth - 1)


def _substitute(item: Any, replaced: dict[int, Any]) -> Any:
    """Return `item` with its mapped parts replaced; `enumerate` and `zip` wrap what they draw."""
    if id(item) in replaced:
        return replaced[id(item)]
    if type(item) is dict:
        values = {key: _substitute(value, replaced) for key, value in item.items()}
        return item if all(values[key] is item[key] for key in item) else values
    if type(item) is not list and not isinstance(item, tuple):
        return item
    parts = [_substitute(part, replaced) for part in item]
    if all(part is old for part, old in zip(parts, item, strict=True)):
        return item
    if type(item) is list:
        return parts
    return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
