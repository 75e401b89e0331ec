"""Views of what an owner holds, each as a dict of its members: entries, items, slots, free
variables, attributes of a class, variables of a module. `object_members` says which kind has which
view.
"""

import ast
import functools
import math
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from enum import Enum
from types import CellType, FunctionType
from typing import Any

KEYS = frozenset({str, int, bool, float, type(None)})

MOST_ENTRIES = 64
"""Of a dict whose entries are members: longer ones are data."""

MOST_ITEMS = 16
"""Of a list whose items are members: longer ones are data."""

ORDER = "[]"
"""A member of a dict: the list of its keys, in their order."""

Members = MutableMapping[str, Any]
MISSING = object()


def attributes(owner: Any) -> dict[str, Any]:
    """The attributes in the object's `__dict__`; no code of its class runs."""
    try:
        found = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


class MemberView(MutableMapping[str, Any]):
    """A view of one owner. Other threads of the script may change that at any time."""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def now(self) -> dict[str, Any]:
        """All of it at this moment. What goes while it is looked for is left out."""
        found = {}
        for name in list(iter(self)):  # not `list(self)`: that asks for the length, and so twice
            with suppress(KeyError):
                found[name] = self[name]
        return found


class Entries(MemberView):
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


class Items(MemberView):
    """The objects in a list or tuple, under their indices in brackets. They lead to members of
    their own: which ones are there is not a part of the state.
    """

    def __init__(self, owner: Sequence[Any]) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def now(self) -> dict[str, Any]:
        """All of it at this moment."""
        return {f"[{index}]": one for index, one in enumerate(self._owner[:MOST_ITEMS])}

    def __getitem__(self, name: str) -> Any:
        return self.now()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """They stay: what a list has gained or lost is set right with all containers."""

    def __delitem__(self, name: str) -> None:
        """The same."""


class Slots(MemberView):
    """The slots of an object, beside attributes that it has otherwise."""

    def __init__(self, owner: Any, slots: tuple[str, ...]) -> None:
        self._owner = owner
        self._slots = slots
        self._more = attributes(owner)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._slots if name in self)
        yield from list(self._more)

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


class Free(MemberView):
    """The attributes of a function, and the variables that it shares with the one around it."""

    def __init__(self, owner: FunctionType) -> None:
        names = owner.__code__.co_freevars
        self._cells: dict[str, CellType] = dict(zip(names, owner.__closure__ or (), strict=True))
        self._more = owner.__dict__

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def now(self) -> dict[str, Any]:
        """All of it at this moment; it is asked for often in every microbatch."""
        found: dict[str, Any] = {}
        for name, cell in self._cells.items():
            with suppress(ValueError):  # it was not given anything yet, or no more
                found[name] = cell.cell_contents
        more = self._more.copy()
        return found | {name: more[name] for name in more if name not in self._cells}

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


class Shared(MemberView):
    """Variables of a class, that all of its objects see; members of an Enum never change."""

    def __init__(self, owner: type[Any]) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def now(self) -> dict[str, Any]:
        """All of it at this moment; it is asked for often in every microbatch."""
        held = vars(self._owner).copy()
        return {name: one for name, one in held.items() if self._is_member(name, one)}

    def __contains__(self, name: object) -> bool:
        held = vars(self._owner)
        return name in held and self._is_member(str(name), held[str(name)])

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return vars(self._owner)[name]

    def _is_member(self, name: str, value: Any) -> bool:
        kind: Any = type(value)
        if name[:2] == "__" or callable(value) or _describes(kind):
            return False
        return kind is not self._owner or not issubclass(kind, Enum)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._owner, name)


@functools.lru_cache(maxsize=4096)
def _describes(kind: Any) -> bool:
    """True of the kinds of properties and methods. Python, too, asks the class alone."""
    return hasattr(kind, "__get__")


@functools.lru_cache(maxsize=4096)
def _iterates(kind: Any) -> bool:
    """True of iterators of Python's own. Asked of every variable, several times in a step."""
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")


class ModuleVariables(MemberView):
    """Variables of a module of the project, those of these `names`: an owner, and its members.
    Python's own iterators are left out: a copy would go on with this rank's items.
    """

    def __init__(self, variables: dict[str, Any], names: Iterable[str]) -> None:
        self.variables, self._names = variables, tuple(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def now(self) -> dict[str, Any]:
        """All of it at this moment; it is asked for often in every microbatch."""
        held, found = self.variables, {}
        for name in self._names:
            value = held.get(name, MISSING)
            kind: Any = type(value)
            if value is not MISSING and not _iterates(kind):
                found[name] = value
        return found

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def __delitem__(self, name: str) -> None:
        del self.variables[name]


class WrittenMembers(MemberView):
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


class Named(MemberView):
    """Those attributes of an object that have one of these names: the rest is its library's."""

    def __init__(self, owner: Any, names: Iterable[str]) -> None:
        self._attributes, self._names = attributes(owner), tuple(names)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._names if name in self._attributes)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._attributes[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._attributes[name] = value

    def __delitem__(self, name: str) -> None:
        del self._attributes[name]
