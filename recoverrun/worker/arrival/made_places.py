"""Containers and objects that survivors have made in new places while they trained: the weights of
the best epoch, an entry of a table, a meter.

A newcomer makes an empty one of the same kind in the same place, before values are put: these go
where they belong by the ways of all others, large tensors, too. Of an object of the script's class
all attributes have to be of kinds that come so: half an object would be worse than none. Whether
all has come the comparison of structures tells (`structure`).
"""

import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from recoverrun.worker.arrival import dict_kinds
from recoverrun.worker.arrival.container_contents import SEQUENCES
from recoverrun.worker.arrival.named_functions import by_code, by_name
from recoverrun.worker.arrival.packing import Packing, Plain, unpack
from recoverrun.worker.arrival.plain_values import KEYS, entry_of
from recoverrun.worker.arrival.value_kinds import is_value
from recoverrun.worker.arrival.value_marks import is_of_training
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import LONG, Holdings, inside
from recoverrun.worker.context.object_members import DICTS, is_defined_in, slots_of
from recoverrun.worker.context.object_views import PLAIN, named_in
from recoverrun.worker.context.slot_context import Context, Key
from recoverrun.worker.data.batch_substitution import holds_part
from recoverrun.worker.data.numpy_arrays import array_kinds
from recoverrun.worker.data.object_copy import attributes_of

CONTAINERS: tuple[type, ...] = (list, deque, set, *DICTS)

Bind = Callable[[str, str, Any], None]


class MadePlaces:
    """All that the donor has made: `is_new` tells of a place and a value whether that is there,
    found by that place first, and was nothing like it as the run began.
    """

    def __init__(
        self, own: frozenset[str], data: Container[int], is_new: Callable[[Place, Any], bool]
    ) -> None:
        self._own, self._data, self._is_new = own, data, is_new

    def told(self, members: Iterable[tuple[Place, Any]]) -> list[list[Plain]]:
        """Path, name and kind of each, as plain values for msgpack."""
        return [
            [*place, self._kind(value)]
            for place, value in members
            if self._is_made(value) and self._is_new(place, value) and self._comes(value, set())
        ]

    def _is_made(self, value: Any) -> bool:
        return type(value) in CONTAINERS or is_defined_in(type(value), self._own)

    def _kind(self, value: Any) -> Plain:
        kind: Any = type(value)
        if kind in DICTS:
            return [Packing([]).pack(dict_kinds.empty(value))]
        if kind in CONTAINERS:
            none = deque(maxlen=value.maxlen) if isinstance(value, deque) else kind()
            return [Packing([]).pack(none)]
        return [str(kind.__module__), str(kind.__qualname__)]

    def _comes(self, value: Any, met: set[int]) -> bool:
        """True if all that hangs on it comes along, or is compared."""
        kind: Any = type(value)
        if kind in PLAIN or is_value(kind):
            return kind in (bool, int, float, type(None)) or entry_of(("", None), value) is not None
        if id(value) in met:
            return True
        met.add(id(value))
        if holds_part(value, self._data) or is_of_training(value):
            return False
        if kind is torch.Tensor or kind in array_kinds():
            return True
        if kind in CONTAINERS:
            return self._container_comes(value, met)
        if by_name(value) is not None:
            return True
        if getattr(value, "__module__", "") in self._own and callable(value):
            return by_code(value) is not None
        attributes = attributes_of(value) or {}
        made = _is_made_plainly(kind) and is_defined_in(kind, self._own)
        return made and all(self._comes(one, met) for one in attributes.values())

    def _container_comes(self, value: Any, met: set[int]) -> bool:
        if entry_of(("", None), value) is not None:
            return True
        if len(value) > LONG or type(value) is set:
            return False
        if type(value) in DICTS and not all(type(key) in KEYS for key in value):
            return False
        inner = value.values() if type(value) in DICTS else value
        return all(self._comes(one, met) for one in inner)


def make(
    told: Iterable[Sequence[Any]],
    there: Holdings,
    spaces: Spaces,
    bind: Bind,
    slot: Context | None = None,
) -> bool:
    """Make them where this process has plain values or nothing: another object is its own. True if
    any was made. Where the lost rank had a plain value, as its `slot` tells, it made none.
    """
    lost: Mapping[Key, Any] = {} if slot is None else slot.values
    holders = {path: one for path, one in reversed(there.held) if path}
    variables: Mapping[str, Mapping[str, Any]] = dict(spaces)
    some = False
    for path, name, kind in told:
        made = _made(kind)
        if made is None or type(lost.get(_key(path, name), made)) in PLAIN:
            continue
        if path in variables:
            if type(variables[path].get(name, made)) not in PLAIN:
                continue
            bind(path, name, made)
        elif path not in holders or not _put(holders[path], name, made):
            continue
        some = True
        for one in _paths(path, name):
            holders[one] = made if type(made) in CONTAINERS else attributes_of(made)
    return some


def _key(path: str, name: Any) -> Key:
    """The key of a context for a variable or an attribute."""
    return name if path.startswith("<") else (*path.split("."), name)


def _made(kind: Sequence[Any]) -> Any:
    if len(kind) == 1:
        return unpack(kind[0], ())
    found: Any = sys.modules.get(kind[0])
    for part in kind[1].split("."):
        found = getattr(found, part, None)
    return object.__new__(found) if _is_made_plainly(found) else None


def _is_made_plainly(kind: Any) -> bool:
    """True of a class that has no way of its own to make objects."""
    return getattr(kind, "__new__", None) is object.__new__ and not slots_of(kind)


def _put(holder: Any, name: Any, made: Any) -> bool:
    if type(holder) in SEQUENCES and name == len(holder):
        holder.append(made)
        return True
    if type(holder) is set:
        return False
    named = named_in(holder)
    if type(named.get(name)) not in PLAIN or (type(holder) in SEQUENCES and name >= len(holder)):
        return False
    named[name] = made
    return True


def _paths(path: str, name: Any) -> Iterator[str]:
    """The paths of what this place holds: of a variable as one of a function and of a module."""
    if path.startswith("<"):
        yield from (str(name), f"{path[1:-1]}.{name}")
    else:
        yield inside(path, name)
