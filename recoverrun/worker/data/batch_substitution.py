"""What a loop or a generator hands to the script, with the parts that a loader gave replaced."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from recoverrun.worker.data.source import Draw
from recoverrun.worker.errors import NotReplayable

ATOMS = (bool, int, float, str, bytes, type(None))
"""Shared objects: an `enumerate` counter may be the very number that a loader gave."""


DEPTH = 2
"""How deep in an item a copy of what was drawn is looked for: `(number, batch)`, say."""


def contains(item: Any, drawn: Any) -> bool:
    """Whether `drawn` itself or a part of it is in `item`."""
    return not _parts(item).isdisjoint(_parts(drawn))


def contains_copy(item: Any, drawn: Any) -> bool:
    """Whether `drawn`, a part of it, or a copy of it is in `item`."""
    return contains(item, drawn) or _has_copy(item, drawn, DEPTH)


def items_in_memory(iterable: Any, depth: int = DEPTH) -> list[Any]:
    """What a loop over `iterable` will be given, as far as that lies in memory already: a list, or
    Python's own iterators around some, as `enumerate(batches)`.
    """
    if type(iterable) in (list, tuple):
        return list(iterable)
    if depth and type(iterable).__module__ == "builtins" and hasattr(iterable, "__next__"):
        try:
            inner = iterable.__reduce__()[1]
        except TypeError:  # a generator
            return []
        return [one for part in inner for one in items_in_memory(part, depth - 1)]
    return []


def dicts_in(items: Iterable[Any]) -> frozenset[int]:
    """Identities of all dicts of which `items` are made."""
    found: set[int] = set()
    todo = [(item, DEPTH) for item in items]
    while todo:
        item, depth = todo.pop()
        if type(item) is dict:
            found.add(id(item))
        if depth and isinstance(item, dict | list | tuple):
            todo += [
                (one, depth - 1) for one in (item.values() if isinstance(item, dict) else item)
            ]
    return frozenset(found)


def draws_in(items: Sequence[Any], draws: Sequence[Draw]) -> list[Draw]:
    """Those of `draws` that `items` are made of; the latest, where these may be copies."""
    parts = set[int]().union(*map(_parts, items))
    found = [draw for draw in draws if not parts.isdisjoint(_parts(draw.item))]
    if found or not any(_has_tensor(item, DEPTH) for item in items[:1]):
        return found
    return list(draws[-len(items) - 1 :])  # a loader may be read one ahead


def _has_tensor(item: Any, depth: int) -> bool:
    if isinstance(item, torch.Tensor):
        return True
    inner = item.values() if isinstance(item, dict) else item
    nested = depth and isinstance(item, dict | list | tuple)
    return bool(nested) and any(_has_tensor(one, depth - 1) for one in inner)


def pairs_for_rank(item: Any, draws: Sequence[Draw], rank: int) -> list[tuple[Any, Any]]:
    """Of `draws`, those that are in `item`, each with what `rank` would have drawn.

    Raises NotReplayable.
    """
    parts = _parts(item)
    found = [draw for draw in draws if not parts.isdisjoint(_parts(draw.item))]
    found = found or [draw for draw in draws if _has_copy(item, draw.item, DEPTH)]
    try:
        return [(draw.item, draw.source.serve(rank, draw.index)) for draw in found]
    except StopIteration:
        raise NotReplayable(f"rank {rank} has no more data where this rank has") from None


def _has_copy(item: Any, drawn: Any, depth: int) -> bool:
    if _is_copy(item, drawn):
        return True
    inner = item.values() if isinstance(item, dict) else item
    nested = depth and isinstance(item, dict | list | tuple)
    return bool(nested) and any(_has_copy(one, drawn, depth - 1) for one in inner)


def _is_copy(item: Any, drawn: Any) -> bool:
    """Whether `item` is `drawn` on another device: the same values in the same structure."""
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


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, ATOMS):
        return type(one) is type(other) and bool(one == other)
    return one is other or _is_copy(one, other)


def _on_device_of(item: Any, own: Any, other: Any) -> Any:
    """`other` in the place of `item`, which is a copy of `own`."""
    if isinstance(item, torch.Tensor) and isinstance(other, torch.Tensor):
        return other.to(item.device)
    if isinstance(item, dict) and isinstance(other, dict):
        return {key: _on_device_of(item[key], own[key], other[key]) for key in item}
    if isinstance(item, list | tuple) and isinstance(other, list | tuple):
        parts = [_on_device_of(*three) for three in zip(item, own, other, strict=True)]
        if isinstance(item, list):
            return parts
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return other


def _parts(item: Any) -> set[int]:
    """Identities of all that `item` is made of."""
    if isinstance(item, ATOMS):
        return set()
    inner = item.values() if isinstance(item, dict) else item
    nested = isinstance(item, dict | list | tuple)
    return {id(item)}.union(*map(_parts, inner)) if nested else {id(item)}


def substituted(item: Any, drawn: Sequence[tuple[Any, Any]]) -> Any:
    """`item` with everything in it that is, or is part of, the first of a pair replaced by the
    second; `item` itself if there is nothing of the kind in it.
    """
    replaced: dict[int, Any] = {}
    for own, other in drawn:
        if item is own:
            return other
        _pair(own, other, replaced)
        _pair_copies(item, own, other, replaced, DEPTH)
    return _substitute(item, replaced) if replaced else item


def _pair(own: Any, other: Any, replaced: dict[int, Any]) -> None:
    """Map an item and its parts to those of another rank's item of the same structure."""
    if isinstance(own, ATOMS):
        return
    replaced[id(own)] = other
    if isinstance(own, dict) and isinstance(other, dict):
        for key in own:
            if key in other:
                _pair(own[key], other[key], replaced)
    elif isinstance(own, list | tuple) and isinstance(other, list | tuple):
        for one, twin in zip(own, other, strict=False):
            _pair(one, twin, replaced)


def _pair_copies(item: Any, own: Any, other: Any, replaced: dict[int, Any], depth: int) -> None:
    """Map every copy of `own` in `item`."""
    if _is_copy(item, own):
        replaced.setdefault(id(item), _on_device_of(item, own, other))
    elif depth and isinstance(item, dict | list | tuple):
        for one in item.values() if isinstance(item, dict) else item:
            _pair_copies(one, own, other, replaced, depth - 1)


def _substitute(item: Any, replaced: dict[int, Any]) -> Any:
    """`item` with every part that was drawn replaced; `enumerate` and `zip` wrap what they draw."""
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
