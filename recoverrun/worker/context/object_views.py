"""Objects of any kind as mappings: what each holds, by names or places, read and set in place.

`object_members` shows what a context captures of the script's objects, by names alone. This shows
more kinds, with whatever keys, and asks no method that a class of the script's has put in their
place.
"""

import contextvars
import ctypes
import functools
import gc
from collections import OrderedDict, deque
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from types import FunctionType
from typing import Any

from recoverrun.worker.context.member_views import (
    Free,
    Slots,
)
from recoverrun.worker.context.object_members import (
    slots_of,
)

PLAIN = (int, float, complex, str, bytes, bool, type(None))
CACHE: type[Any] = functools._lru_cache_wrapper

_ABSENT = object()
RAW = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)


def named_in(one: Any) -> MutableMapping[Any, Any]:
    """The members of an object, each by a name or a place."""
    kind: Any = type(one)
    slots = slots_of(kind)
    if isinstance(one, dict):
        return _Entries(one)
    if isinstance(one, type):
        return _Class(one)
    if isinstance(one, FunctionType):
        return Function(one)
    if isinstance(one, functools.partial):
        return Arguments(one)
    if isinstance(one, list | deque):
        return Sequence(one)
    return one if isinstance(one, MutableMapping) and not slots else Slots(one, slots)


def items_in(one: Any) -> list[tuple[Any, Any]]:
    """The members of what `is_view` holds of, as they are now."""
    if isinstance(one, dict):
        return list(dict.items(one))
    named = named_in(one)
    found = ((name, named.get(name, _ABSENT)) for name in list(named))
    return [(name, value) for name, value in found if value is not _ABSENT]


def behind_cache(one: Any) -> list[Any]:
    """The objects behind a cache of `functools`. One with a bound chains its entries beside their
    dict, which is left out: no code but its own may change it.
    """
    inner = gc.get_referents(one)
    if one.cache_parameters()["maxsize"] is None:
        return inner
    return [part for part in inner if type(part) is not dict or part is vars(one)]


def behind_proxy(one: Any) -> list[Any]:
    """The objects behind a mapping proxy. Of the proxy that `vars` of a class is, the dict is left
    out: the class keeps what it has looked up, and learns nothing of a write to its dict.
    """
    (inner,) = gc.get_referents(one)
    of_class = type(inner) is dict and "__doc__" in inner  # every class has it
    return list(inner.values()) if of_class else [inner]


def is_view(one: Any) -> bool:
    """True of what `named_in` can show."""
    kind: Any = type(one)
    shown = (dict, type, FunctionType, functools.partial, list, deque, MutableMapping)
    return isinstance(one, shown) or bool(slots_of(kind))


class Function(MutableMapping[str, Any]):
    """The cells and attributes of a function, and the defaults of its arguments, as `width=`."""

    def __init__(self, owner: FunctionType) -> None:
        self._owner, self._free = owner, Free(owner)
        code, given = owner.__code__, owner.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        self._given = [f"{name}=" for name in names[len(names) - len(given) :]]
        self._by_name = [f"{name}=" for name in owner.__kwdefaults__ or ()]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._free, *self._given, *self._by_name])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            return (self._owner.__defaults__ or ())[self._given.index(name)]
        if name in self._by_name:
            return (self._owner.__kwdefaults__ or {})[name.removesuffix("=")]
        return self._free[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._given:
            place, given = self._given.index(name), self._owner.__defaults__ or ()
            self._owner.__defaults__ = (*given[:place], value, *given[place + 1 :])
        elif name in self._by_name:
            by_name = self._owner.__kwdefaults__ or {}
            by_name[name.removesuffix("=")] = value
        else:
            self._free[name] = value

    def __delitem__(self, name: str) -> None:
        """Defaults stay."""
        if name not in self._given and name not in self._by_name:
            del self._free[name]


class Arguments(MutableMapping[int, Any]):
    """The arguments of a partial that are given by position. Those by name are in a dict of its
    own.
    """

    def __init__(self, owner: "functools.partial[Any]") -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._owner.args)))

    def __len__(self) -> int:
        return len(self._owner.args)

    def __getitem__(self, place: int) -> Any:
        if place not in range(len(self)):
            raise KeyError(place)
        return self._owner.args[place]

    def __setitem__(self, place: int, value: Any) -> None:
        owner, given = self._owner, self._owner.args
        state = owner.func, (*given[:place], value, *given[place + 1 :]), owner.keywords
        owner.__setstate__((*state, owner.__dict__))  # type: ignore[attr-defined]

    def __delitem__(self, place: int) -> None:
        """Nothing takes an argument away."""


class Sequence(MutableMapping[int, Any]):
    """The items of a list or a deque, by place."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._kind: Any = deque if isinstance(owner, deque) else list

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return int(self._kind.__len__(self._owner))

    def __getitem__(self, place: int) -> Any:
        if place not in range(len(self)):
            raise KeyError(place)
        try:
            return self._kind.__getitem__(self._owner, place)
        except IndexError:  # another thread of the script has made it shorter
            raise KeyError(place) from None

    def __setitem__(self, place: int, value: Any) -> None:
        while len(self) <= place:  # in a process whose list is still to grow
            self._kind.append(self._owner, None)
        self._kind.__setitem__(self._owner, place, value)

    def __delitem__(self, place: int) -> None:
        """Its length is its own."""


class _Entries(MutableMapping[Any, Any]):
    """The entries of a dict of whatever class, which may do more than a dict when it is read or
    written.
    """

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
    """The definitions in a class, and variables that its objects share."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return iter([name for name in list(vars(self._owner)) if not name.startswith("__")])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: Any) -> Any:
        return vars(self._owner)[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        type.__setattr__(self._owner, name, value)

    def __delitem__(self, name: Any) -> None:
        type.__delattr__(self._owner, name)


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
