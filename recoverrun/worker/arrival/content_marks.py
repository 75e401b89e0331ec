"""Marks of containers none of whose entries is looked at by itself.

Plain values count by what they are, also in tuples, lists and dicts within, and so do those that an
object has as its attributes. All objects count as themselves: what changes within a tensor, or
deeper in an object, is not seen. Beyond `MOST_BYTES` of values, entries count as themselves alone.
"""

import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack
import torch

from recoverrun.worker.context.object_views import PLAIN

MOST_BYTES = 1 << 25
"""Of the plain values of one container, which take some 50 ms."""

PART = 256
"""Entries that are read at once."""

_PLAIN = frozenset(PLAIN)
_TEXTS = frozenset({str, bytes})


class Objects:
    """Objects by identity. They are held weakly where that can be: a value of another kind is small
    and does not change. So none is taken for another one that lies where it lay.
    """

    def __init__(self) -> None:
        self._held: list[Any] = []

    def add(self, one: Any) -> None:
        try:
            self._held.append(weakref.ref(one))  # the same one for each call
        except TypeError:
            self._held.append(one)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Objects) or len(self._held) != len(other._held):
            return False
        return all(one is its for one, its in zip(self._held, other._held, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._held)))


def mark_of(container: Any, *, attributes: bool = True) -> tuple[Any, ...]:
    """The mark of a list, a deque or a dict; without `attributes` of the objects in it."""
    if isinstance(container, dict):
        return (*mark_of(list(container)), *mark_of(list(container.values())))
    items = list(container) if isinstance(container, deque) else container
    if _TEXTS.issuperset(map(type, items)):
        return len(items), hash(tuple(items))  # each text knows its own
    reading = _Reading(attributes)
    for first in range(0, len(items), PART):
        reading.read(items[first : first + PART])
    return len(items), reading.sum, reading.objects


class _Reading:
    """The reading of one container so far."""

    def __init__(self, attributes: bool) -> None:
        self.sum = 0
        self.objects = Objects()
        self._attributes = attributes
        self._left = MOST_BYTES

    def read(self, items: Sequence[Any]) -> None:
        if self._left <= 0:
            self._note(items)
            return
        try:
            packed = msgpack.packb(items, default=self._of_object, unicode_errors="surrogatepass")
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._note(items)  # an integer of more than 64 bits, a dict with objects as its keys
            return
        self._left -= len(packed)
        self.sum = zlib.crc32(packed, self.sum)

    def _note(self, items: Iterable[Any]) -> None:
        for one in items:
            self.objects.add(one)

    def _of_object(self, one: Any) -> Any:
        """The part of an object that msgpack is to read in its place."""
        self.objects.add(one)
        if not self._attributes or isinstance(one, torch.Tensor | torch.nn.Module | type):
            return None  # what is in a module is told in another place
        attributes = getattr(one, "__dict__", None)
        if type(attributes) is not dict:
            return None
        return [value for value in attributes.values() if type(value) in _PLAIN]
