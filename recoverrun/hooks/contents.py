"""What an object of any kind holds, in one layer, noted and put back in place.

A dict of whatever class, a class with its variables, a function with its cells, an object with
slots, a list, a set, an array: `holders` finds them.
"""

import array
import contextvars
import ctypes
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from types import FunctionType
from typing import Any

import torch

from recoverrun.hooks.members import Free, Slots, slots_of

PLAIN = (int, float, complex, str, bytes, bool, type(None))
RAW = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)

Content = tuple[list[Any], list[Any]] | bytes | torch.Tensor
"""Keys, if there are any, and values; or what an array holds."""


class Kept:
    """What `held` hold now, and how to set right what has changed."""

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


class Variables(MutableMapping[Any, Any]):
    """Context variables, as they are for the code that runs now."""

    def __iter__(self) -> Iterator[ContextVar[Any]]:
        return iter(contextvars.copy_context())

    def __len__(self) -> int:
        return len(contextvars.copy_context())

    def __getitem__(self, name: ContextVar[Any]) -> Any:
        return contextvars.copy_context()[name]

    def __setitem__(self, name: ContextVar[Any], value: Any) -> None:
        name.set(value)

    def __delitem__(self, name: ContextVar[Any]) -> None:
        """It was given no value before; there is no way to take one away."""


def content(one: Any) -> Content:
    """As it is now; objects in it are not copied."""
    if isinstance(one, torch.Tensor):
        return one.detach().clone()
    if _is_array(one):
        return ([], list(one.flat)) if one.dtype.hasobject else bytes(one.tobytes())
    if isinstance(one, RAW):
        return ctypes.string_at(ctypes.addressof(one), ctypes.sizeof(one))
    if isinstance(one, bytearray | array.array):
        return bytes(memoryview(one))
    if isinstance(one, list | set | deque):
        return [], list(one)
    named = _mapping(one)
    keys = list(named)
    return keys, [named[key] for key in keys]


def _mapping(one: Any) -> MutableMapping[Any, Any]:
    kind: Any = type(one)
    slots = slots_of(kind)
    if isinstance(one, dict):
        return _Entries(one)
    if isinstance(one, type):
        return _Class(one)
    if isinstance(one, FunctionType):
        return Free(one)
    return one if isinstance(one, MutableMapping) and not slots else Slots(one, slots)


class _Entries(MutableMapping[Any, Any]):
    """Of a dict of whatever class, which may do more than a dict when it is read or written."""

    def __init__(self, owner: dict[Any, Any]) -> None:
        self._owner = owner
        self._kind: Any = OrderedDict if isinstance(owner, OrderedDict) else dict

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._kind.__iter__(self._owner)))

    def __len__(self) -> int:
        return dict.__len__(self._owner)

    def __getitem__(self, key: Any) -> Any:
        return dict.__getitem__(self._owner, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._kind.__setitem__(self._owner, key, value)

    def __delitem__(self, key: Any) -> None:
        self._kind.__delitem__(self._owner, key)


class _Class(MutableMapping[Any, Any]):
    """Of a class: what was defined in it, and variables that its objects share."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return iter([name for name in vars(self._owner) if not name.startswith("__")])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: Any) -> Any:
        return vars(self._owner)[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        type.__setattr__(self._owner, name, value)

    def __delitem__(self, name: Any) -> None:
        type.__delattr__(self._owner, name)


def _identical(now: Content, before: Content) -> bool:
    if isinstance(now, tuple) and isinstance(before, tuple):
        pairs = zip(now, before, strict=True)
        return all(len(a) == len(b) and all(map(_same, a, b)) for a, b in pairs)
    if isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor):
        return now.shape == before.shape and torch.equal(_bits(now), _bits(before))
    return now == before


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in PLAIN and one == other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _put(one: Any, before: Content) -> None:
    if isinstance(before, torch.Tensor):
        with torch.no_grad():
            one.copy_(before)
    elif isinstance(before, bytes):
        _put_bytes(one, before)
    elif isinstance(one, list | set | deque):
        _refill(one, before[1])
    elif _is_array(one):
        one.flat[:] = before[1]
    else:
        _put_named(_mapping(one), dict(zip(*before, strict=True)))


def _refill(one: Any, entries: list[Any]) -> None:
    """By the methods of the plain kind: those of a class of its own may do more."""
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


def array_kinds() -> tuple[Any, ...]:
    """Of numpy, if it is there. One that maps a file has to be put right where it is written to."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray, numpy.memmap)


def _is_array(value: Any) -> bool:
    return isinstance(value, array_kinds())
