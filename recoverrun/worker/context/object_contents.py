"""The contents of an object of any kind, in one layer, noted and put back in place.

A dict of whatever class, a class with its variables, a function with its cells and defaults, the
arguments of a partial, an object with slots, a list, a set, an array: `object_graph` finds them.
"""

import array
import ctypes
import sys
from collections import deque
from collections.abc import Iterable, MutableMapping
from typing import Any

import torch

from ft_collectives.communicators.tensor_bits import bits_of
from recoverrun.worker.context.object_views import PLAIN, RAW, named_in
from recoverrun.worker.data.numpy_arrays import is_array

Content = tuple[list[Any], list[Any]] | bytes | torch.Tensor
"""Keys, if there are any, and values; or what an array holds."""


class KeptContents:
    """The present contents of `held`, and how to restore what has changed."""

    def __init__(self, held: Iterable[Any]) -> None:
        self._before = [(one, content(one)) for one in held]

    def changed(self) -> list[int]:
        """The places of those that hold something else now."""
        return [
            place
            for place, (one, before) in enumerate(self._before)
            if not _identical(content(one), before)
        ]

    def put_back(self) -> None:
        for place in self.changed():
            _put(*self._before[place])


def content(one: Any) -> Content:
    """The content as it is now; objects in it are not copied."""
    if isinstance(one, torch.Tensor):
        return one.detach().clone()
    if is_array(one):
        return ([], list(one.flat)) if one.dtype.hasobject else bytes(one.tobytes())
    if isinstance(one, RAW):
        return ctypes.string_at(ctypes.addressof(one), ctypes.sizeof(one))
    if isinstance(one, bytearray | array.array):
        return bytes(memoryview(one))
    if isinstance(one, list | set | deque):
        return [], list(one)
    named = named_in(one)
    held = dict(named) if type(named) is dict else {key: named.get(key) for key in list(named)}
    return list(held), list(held.values())


def _identical(now: Content, before: Content) -> bool:
    if isinstance(now, tuple) and isinstance(before, tuple):
        pairs = zip(now, before, strict=True)
        return all(len(a) == len(b) and all(map(_same, a, b)) for a, b in pairs)
    if isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor):
        return now.shape == before.shape and torch.equal(bits_of(now), bits_of(before))
    return now == before


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in PLAIN and one == other)


def _put(one: Any, before: Content) -> None:
    if isinstance(before, torch.Tensor):
        with torch.no_grad():
            one.copy_(before)
    elif isinstance(before, bytes):
        _put_bytes(one, before)
    elif isinstance(one, list | set | deque):
        _refill(one, before[1])
    elif is_array(one):
        one.flat[:] = before[1]
    else:
        _put_named(named_in(one), dict(zip(*before, strict=True)))


def _refill(one: Any, entries: list[Any]) -> None:
    """Refill by the methods of the plain kind: those of a class of its own may do more."""
    kind: Any = next(kind for kind in (list, set, deque) if isinstance(one, kind))
    kind.clear(one)
    (kind.update if kind is set else kind.extend)(one, entries)


def _put_named(named: MutableMapping[Any, Any], before: dict[Any, Any]) -> None:
    keys = list(named)
    if len(keys) != len(before) or not all(map(_same, keys, before)):  # also of their order
        for key in keys:
            del named[key]
    for key, value in before.items():
        if key not in named or not _same(named[key], value):
            named[key] = value


def _put_bytes(one: Any, before: bytes) -> None:
    if isinstance(one, bytearray):
        one[:] = before
    elif isinstance(one, array.array):
        del one[:]
        one.frombytes(before)
    elif isinstance(one, RAW):
        ctypes.memmove(ctypes.addressof(one), before, len(before))
    else:
        numpy = sys.modules["numpy"]
        one[...] = numpy.frombuffer(before, dtype=one.dtype).reshape(one.shape)
