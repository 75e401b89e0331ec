"""Kinds of values beside the plain ones that never change: a span of time, a fraction, a path, a
named tuple, a member of an Enum.

Each is told as its kind and what its kind is called with, and made by that kind anew: one of a
fixed list, or a tuple with names or an Enum whose module is loaded here. No other code is found by
its name, so what arrives executes nothing else.
"""

import enum
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any

import torch

CALLED: dict[str, Any] = {
    one.__qualname__: one
    for one in (
        timedelta, date, time, datetime, timezone, Fraction, Decimal, range, slice,
        PosixPath, PurePosixPath, PureWindowsPath, torch.Size,
    )
}  # fmt: skip
"""Kinds that say by `__reduce_ex__` what they are to be called with."""

TUPLE, MEMBER = "namedtuple", "enum"

Packs = Callable[[Any], Any]


def is_value(kind: Any) -> bool:
    """True of kinds that never change, of which some values are packed."""
    if kind in (tuple, frozenset) or CALLED.get(kind.__qualname__) is kind:
        return True
    return _is_named_tuple(kind) or issubclass(kind, enum.Enum)


def packed(value: Any, pack: Packs) -> tuple[str, Any] | None:
    """The mark of the kind of `value`, and plain values; None if it is of no such kind. `pack`
    packs what it is made of.
    """
    kind = type(value)
    name = kind.__qualname__
    if CALLED.get(name) is kind:
        made, arguments, *rest = value.__reduce_ex__(4)
        return (name, pack(list(arguments))) if made is kind and not any(rest) else None
    if _is_named_tuple(kind) and named(kind.__module__, name) is kind:
        return TUPLE, [kind.__module__, name, pack(list(value))]
    if issubclass(kind, enum.Enum) and named(kind.__module__, name) is kind:
        return MEMBER, [kind.__module__, name, pack(value.value)]
    return None


def unpacked(mark: str, body: Any, unpack: Packs) -> Any:
    """Raises LookupError if `mark` is none of a kind, and what kinds raise."""
    if mark in CALLED:
        return CALLED[mark](*unpack(body))
    if mark not in (TUPLE, MEMBER):
        raise LookupError(mark)
    module, name, content = body
    kind = named(module, name)
    if mark == TUPLE and _is_named_tuple(kind):
        return tuple.__new__(kind, unpack(content))
    if mark == MEMBER and isinstance(kind, enum.EnumMeta):
        return kind(unpack(content))
    raise LookupError(name)


def _is_named_tuple(kind: Any) -> bool:
    """True of one that holds nothing beside its fields."""
    named = isinstance(kind, type) and issubclass(kind, tuple)
    return named and hasattr(kind, "_fields") and not kind.__dictoffset__


def named(module: str, name: str) -> Any:
    """A class or function of a module that is loaded; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
