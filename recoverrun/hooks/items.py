"""What a loop or a generator hands to the script, with the parts that a loader gave replaced."""

from collections.abc import Sequence
from typing import Any


def substituted(item: Any, drawn: Sequence[tuple[Any, Any]]) -> Any:
    """`item` with everything in it that is, or is part of, the first of a pair replaced by the
    second; `item` itself if there is nothing of the kind in it.
    """
    replaced: dict[int, Any] = {}
    for own, other in drawn:
        if item is own:
            return other
        _pair(own, other, replaced)
    return _substitute(item, replaced) if replaced else item


def _pair(own: Any, other: Any, replaced: dict[int, Any]) -> None:
    """Map an item and its parts to those of another rank's item of the same structure.

    Numbers and texts are shared objects: an `enumerate` counter may be the very same one.
    """
    if own is None or isinstance(own, bool | int | float | str | bytes):
        return
    replaced[id(own)] = other
    if isinstance(own, dict) and isinstance(other, dict):
        for key in own:
            if key in other:
                _pair(own[key], other[key], replaced)
    elif isinstance(own, list | tuple) and isinstance(other, list | tuple):
        for one, twin in zip(own, other, strict=False):
            _pair(one, twin, replaced)


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
