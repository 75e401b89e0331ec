"""The members of the script's objects, each by a name: attributes, slots, entries, free variables.

A path leads from a variable through such names to a value: `state` and `["step"]` to an entry of a
dict, `fetch` and `position` to a variable of a closure or to an attribute of a function. Whatever
kind the owner is of, its members are read, set and deleted as those of a dict are.
"""

import argparse
import ast
import functools
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

from torch import nn

from recoverrun.worker.context.attached_state import ATTACHED

NAMESPACES = frozenset({SimpleNamespace, argparse.Namespace})
DICTS = frozenset({dict, OrderedDict, defaultdict, Counter})
KEYS = frozenset({str, int, bool, float, type(None)})

MOST_ENTRIES = 64
"""Of a dict whose entries are members: longer ones are data."""

ORDER = "[]"
"""A member of a dict: the list of its keys, in their order."""

FRAMEWORKS = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages whose objects keep count of the script's microbatches, as its own objects might."""

MAIN = "<__main__>"
"""The name of the main module among those of modules, which no variable has."""

Members = MutableMapping[str, Any]


def is_framework(value: Any) -> bool:
    kind: Any = type(value)
    return is_of_framework(kind)


def is_of_framework(kind: Any) -> bool:
    return kind.__module__.partition(".")[0] in FRAMEWORKS


def is_own(value: Any, modules: frozenset[str]) -> bool:
    """An object with attributes of a class of one of the script's `modules`; no model."""
    kind: Any = type(value)
    return is_own_kind(kind, modules) and hasattr(value, "__dict__")


@functools.lru_cache(maxsize=4096)
def is_own_kind(kind: Any, modules: frozenset[str]) -> bool:
    """Asked of every variable, several times in a step."""
    own = is_defined_in(kind, modules) or is_of_framework(kind)
    return own and not issubclass(kind, type | nn.Module)


def is_defined_in(kind: Any, modules: frozenset[str]) -> bool:
    """True of a class of one of these modules, and of a library's that is derived from one: a
    Trainer that extends an instrumented one keeps what that counts.
    """
    return any(base.__module__ in modules for base in kind.__mro__)


def is_owner(value: Any, modules: frozenset[str]) -> bool:
    """True of what may hold a part of the script's state in members of its own."""
    kind: Any = type(value)
    if kind in DICTS:
        return len(value) <= MOST_ENTRIES
    if kind in NAMESPACES or kind is ModuleVariables:
        return True
    if kind is FunctionType:
        return bool(value.__closure__ or value.__dict__) and value.__module__ in modules
    if kind is MethodType:
        return is_owner(value.__self__, modules)
    if isinstance(value, nn.Module):
        return bool(ATTACHED.written(value))
    if isinstance(value, type):
        return value.__module__ in modules and not issubclass(value, nn.Module)
    return is_own_kind(kind, modules) and (hasattr(value, "__dict__") or bool(slots_of(kind)))


def members(owner: Any) -> Members:
    """Those of an owner; none of anything else."""
    kind: Any = type(owner)
    if kind in DICTS:
        return Entries(owner)
    if kind in NAMESPACES:
        return _attributes(owner)
    if kind is ModuleVariables:
        return cast(ModuleVariables, owner)
    if kind is MethodType:
        return members(owner.__self__)
    if kind is FunctionType:
        return Free(owner)
    if isinstance(owner, type):
        return Shared(owner)
    if isinstance(owner, nn.Module) and (written := ATTACHED.written(owner)):
        return Written(owner, written)
    slots = slots_of(kind)
    if slots:
        return Slots(owner, slots)
    return _attributes(owner)


def contents(owner: Any) -> dict[str, Any]:
    """The members of an owner at this moment, in a dict of their own.

    Another thread of the script may change them while they are looked through: the dict that holds
    them is copied in one go, in which no other thread runs.
    """
    held = members(owner)
    return held.now() if isinstance(held, _View) else dict(held)


def _attributes(owner: Any) -> dict[str, Any]:
    """Without asking the owner's class, which may make up what is not there."""
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(maxsize=4096)
def slots_of(kind: Any) -> tuple[str, ...]:
    """Names of the class's `__slots__` and of those of its bases, as attributes are looked up."""
    found: list[str] = []
    for base in kind.__mro__:
        named = vars(base).get("__slots__", ())
        for name in (named,) if isinstance(named, str) else tuple(named):
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(dict.fromkeys(found))


class _View(MutableMapping[str, Any]):
    def __len__(self) -> int:
        return sum(1 for _ in self)

    def now(self) -> dict[str, Any]:
        """All of it at this moment. What goes while it is looked for is left out."""
        found = {}
        for name in list(self):
            with suppress(KeyError):
                found[name] = self[name]
        return found


class Entries(_View):
    """The entries of a dict, under the text of each key in brackets; those with other keys are not
    there.
    """

    def __init__(self, owner: dict[Any, Any]) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def now(self) -> dict[str, Any]:
        """All of it at this moment; it is asked for often in every microbatch."""
        held = dict(self._owner)
        found = {f"[{key!r}]": value for key, value in held.items() if _is_plain(key)}
        return {ORDER: list(held), **found} if len(found) == len(held) else found

    def __getitem__(self, name: str) -> Any:
        if name == ORDER:
            return list(self._owner)
        key = _key(name)
        if key not in self._owner:  # a defaultdict would make one
            raise KeyError(name)
        return self._owner[key]

    def __setitem__(self, name: str, value: Any) -> None:
        if name != ORDER:
            self._owner[_key(name)] = value
        elif value != list(self._owner):
            held = dict(self._owner)
            self._owner.clear()
            for key in value:
                self._owner[key] = held.get(key)

    def __delitem__(self, name: str) -> None:
        if name != ORDER:
            self._owner.pop(_key(name), None)


def _is_plain(key: Any) -> bool:
    """True of keys of which the text says all."""
    return type(key) in KEYS and (type(key) is not float or math.isfinite(key))


@functools.lru_cache(maxsize=4096)
def _key(name: str) -> Any:
    """Raises KeyError for what names no entry."""
    if not (name.startswith("[") and name.endswith("]")):  # it may be a mark
        raise KeyError(name)
    return ast.literal_eval(name[1:-1])


class Slots(_View):
    """The slots of an object, beside attributes that it has otherwise."""

    def __init__(self, owner: Any, slots: tuple[str, ...]) -> None:
        self._owner = owner
        self._slots = slots
        self._more = _attributes(owner)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._slots if name in self)
        yield from list(self._more)

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __getitem__(self, name: str) -> Any:
        if name not in self._slots:
            return self._more[name]
        try:
            return object.__getattribute__(self._owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._slots:
            object.__setattr__(self._owner, name, value)
        else:
            self._more[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._slots:
            object.__delattr__(self._owner, name)
        else:
            del self._more[name]


class Free(_View):
    """The attributes of a function, and the variables that it shares with the one around it."""

    def __init__(self, owner: FunctionType) -> None:
        names = owner.__code__.co_freevars
        self._cells: dict[str, CellType] = dict(zip(names, owner.__closure__ or (), strict=True))
        self._more = owner.__dict__

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._cells if name in self)
        yield from (name for name in list(self._more) if name not in self._cells)

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __getitem__(self, name: str) -> Any:
        if name not in self._cells:
            return self._more[name]
        try:
            return self._cells[name].cell_contents
        except ValueError:  # it was not given anything yet, or no more
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._cells:
            self._cells[name].cell_contents = value
        else:
            self._more[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._cells:
            del self._cells[name].cell_contents
        else:
            del self._more[name]


class Shared(_View):
    """Variables of a class, that all of its objects see."""

    def __init__(self, owner: type[Any]) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in list(vars(self._owner)) if name in self)

    def __contains__(self, name: object) -> bool:
        held = vars(self._owner)
        if str(name).startswith("__") or name not in held:
            return False
        value = held[str(name)]
        return not (callable(value) or hasattr(value, "__get__"))

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return vars(self._owner)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._owner, name)


def _is_iterator(value: Any) -> bool:
    kind: Any = type(value)
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")


class ModuleVariables(_View):
    """Variables of a module of the project, those of these `names`: an owner, and its members.
    Python's own iterators are left out: a copy would go on with this rank's items.
    """

    def __init__(self, variables: dict[str, Any], names: Iterable[str]) -> None:
        self.variables, self._names = variables, tuple(names)

    def __iter__(self) -> Iterator[str]:
        held = self.variables
        yield from (n for n in self._names if n in held and not _is_iterator(held[n]))

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def __delitem__(self, name: str) -> None:
        del self.variables[name]


class Written(_View):
    """Attributes and buffers of a module that the script has written to."""

    def __init__(self, module: Any, names: frozenset[str]) -> None:
        self._attributes, self._buffers = vars(module), vars(module)["_buffers"]
        self._names = names

    def __iter__(self) -> Iterator[str]:
        yield from sorted(name for name in self._names if name in self)

    def __contains__(self, name: object) -> bool:
        return name in self._names and (name in self._attributes or name in self._buffers)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return self._buffers[name] if name in self._buffers else self._attributes[name]

    def __setitem__(self, name: str, value: Any) -> None:
        (self._buffers if name in self._buffers else self._attributes)[name] = value

    def __delitem__(self, name: str) -> None:
        del (self._buffers if name in self._buffers else self._attributes)[name]


# ------------------------------------------------------------------------------- by path


def resolve(names: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The owner of the member `path[-1]`, or None if the way to it is gone."""
    owner: Any = names.get(path[0])
    for name in path[1:-1]:
        owner = members(owner).get(name)
    return owner


def spelt(path: tuple[str, ...]) -> str:
    """The path as code would say it: `state["step"]`, `fetch.position`."""
    if path[-1] == ORDER:
        return f"list({spelt(path[:-1])})"
    if path[0] == MAIN:
        return spelt(path[1:])
    return path[0].strip("<>") + "".join(
        name if name.startswith("[") else f".{name}" for name in path[1:]
    )


def is_of_module(path: tuple[str, ...]) -> bool:
    """True if the path begins at a module of the project."""
    return path[0].startswith("<")


def identifier(path: tuple[str, ...]) -> str:
    """The last name on the way that stands in the script's text."""
    return next(
        (name for name in reversed(path) if not name.startswith("[")), path[0]
    ).removesuffix("#")
