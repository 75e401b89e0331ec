"""Values that the script changes in place and keeps where neither a module nor a loop tells of
them.

An average of weights in a dict, a buffer of past samples in an array, a history that has grown too
long for a plain value (`arrival.plain_values`). Each is known by its path, and by a mark that tells
whether it has changed.

A snapshot holds all of them, and so is a process that comes back told of them, but for variables
that were not there before anything was trained: these may be one rank's own.
"""

import re
import sys
from collections import deque
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

from recoverrun.worker.arrival import (
    content_marks,
    dict_kinds,
    memory_places,
    new_objects,
    plain_values,
    raw_memory,
    value_marks,
)
from recoverrun.worker.arrival.container_contents import SEQUENCES, WHOLE, fill
from recoverrun.worker.arrival.elements import fill_elements
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain
from recoverrun.worker.arrival.plain_values import LONG_CONTAINER
from recoverrun.worker.arrival.sharded_tensors import is_distributed
from recoverrun.worker.arrival.value_marks import (
    Mark,
    cannot_travel,
    is_of_training,
    mark_of_tensor,
)
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import LONG, Holdings
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import named_in
from recoverrun.worker.data.batch_substitution import holds_part
from recoverrun.worker.data.numpy_arrays import array_kinds
from recoverrun.worker.errors import NotReachable

LOOSE_BYTES = 1 << 12
"""Of a tensor or an array in an object: smaller ones are plain values, or of the context. A sharded
tensor is neither, however small.
"""

GROWN = "{} has changed since the run began, and {}"
SHARDED = "{} is a sharded tensor that was made while the script trained"
GONE = "{}, which has changed since the run began, is not there"

_FIRST = re.compile(r"[.\[]")


def spaces_of(frames: Sequence[FrameType], own: frozenset[str]) -> Spaces:
    """The namespaces of functions that run, and of the script's `own` modules."""
    local = [(f"<{one.f_code.co_qualname}>", one.f_locals) for one in frames]
    known = sorted(own & sys.modules.keys())
    return [*local, *((f"<{name}>", vars(sys.modules[name])) for name in known)]


def marks(there: Holdings, spaces: Spaces) -> dict[Place, Mark]:
    """The marks of all that may change."""
    return {key: mark for key, _, mark in _all(there, spaces)}


def tensor_marks(there: Holdings, spaces: Spaces) -> dict[Place, Mark]:
    """The marks of the tensors among them."""
    return {key: mark for key, _, mark in _tensors(there, spaces)}


def changed_in_place(
    there: Holdings,
    spaces: Spaces,
    *,
    before: Mapping[Place, Mark],
    bound: frozenset[str],
    data: frozenset[int],
    packing: Packing,
    whole: Iterable[str] = (),
) -> list[list[Any]]:
    """The values that have changed since `before`, and are not in `packing` yet: plain values for
    msgpack. Left out are variables that were not there before or that loops have `bound`, parts of
    `data`, lists at the paths `whole`, which are told elsewhere, and lists that cannot be told: of
    these each object is told by itself.

    Raises CannotTravel.
    """
    known = {(one.data_ptr(), one.nbytes) for one in packing.tensors}
    lists, found, names = set(whole), [], {space for space, _ in spaces}
    for key, value, mark in _all(there, spaces):
        path, name = key
        if before.get(key) == mark or (path in names and key not in before):
            continue
        if path in lists or plain_values.is_within(path, lists) or _variable(*key) in bound:
            continue
        if isinstance(value, torch.Tensor) and mark[:2] in known:
            continue
        if holds_part(value, data) or packing.with_id(name) is not None:  # `values_by_parameter`
            continue
        if name is None:
            if is_of_training(value) or not _can_travel(value, packing):
                continue
            lists.add(path)
        found.append([path, name, packing.pack(_plain(value), f"{path}[{name!r}]")])
    return found


def _can_travel(value: Any, packing: Packing) -> bool:
    try:
        Packing([], packing.here).pack(_plain(value))
    except CannotTravel:
        return False
    return True


def put_in_place(
    there: Holdings,
    spaces: Spaces,
    told: Iterable[tuple[str, Any, Any]],
    lie: Container[Place] | None = None,
) -> list[tuple[str, Any, Any]]:
    """Put them where they were found. One that nothing here holds is another rank's own. Tensors
    and arrays get their elements where they lie, those at the places `lie` alone if it is given.
    Returns the values of variables that are to be bound anew, by their spaces and names.
    """
    holders, variables = _holders(there), dict(spaces)
    anew: list[tuple[str, Any, Any]] = []
    for path, name, packed in told:
        value = raw_memory.made(packed)
        if path in variables:
            if name in variables[path] and not _fill((path, name), variables[path], value, lie):
                anew.append((path, name, value))
        elif name is None and path not in holders:
            around, place = plain_values.place_of(path)
            if around in holders and new_objects.add(holders[around], place, value):
                holders[path] = value
        elif name is None:
            fill(holders[path], value)
        elif path in holders and not _fill((path, name), _named(holders[path]), value, lie):
            _named(holders[path])[name] = value
    return anew


def told(
    there: Holdings,
    spaces: Spaces,
    before: Mapping[Place, Mark],
    bound: frozenset[str],
    packing: Packing,
    *,
    whole: Iterable[str] = (),
    data: Container[int] = (),
) -> list[list[Any]]:
    """The values that have changed since `before`, and are not in `packing` yet: plain values for
    msgpack. Variables that loops have `bound` come by themselves, as `data` do. Lists at the paths
    `whole` are told elsewhere; lists within a list come with it. A list of objects that was there
    `before` may have another path by now, as an argument of a function that was called since.

    Raises NotReachable if a list of it cannot be told.
    """
    known = {(one.data_ptr(), one.nbytes) for one in packing.tensors}
    lists, found = set(whole), []
    at_start: frozenset[Mark] | None = None
    kinds: dict[str, Plain] | None = None
    for key, value, mark in _all(there, spaces):
        path, name = key
        if before.get(key) == mark:
            continue
        if name is None and type(value) not in (*SEQUENCES, *DICTS) and key not in before:
            continue
        if id(value) in data:
            continue
        if name is None and (path in lists or plain_values.is_within(path, lists)):
            continue
        if _variable(path, name) in bound:
            continue
        if packing.with_id(name) is not None:  # see `values_by_parameter`
            continue
        if isinstance(value, torch.Tensor) and mark[:2] in known:
            continue
        if is_distributed(value) and key not in before:
            raise NotReachable(SHARDED.format(f"{path}[{name!r}]"))
        try:
            row = [path, name, packing.pack(_plain(value), f"{path}[{name!r}]")]
            kinds = _kinds(there, before) if kinds is None else kinds
            if (kind := kinds.pop(path, None)) is not None:
                found.append([path, None, kind])
            found.append(row)
            if name is None:
                lists.add(path)
        except CannotTravel as why:
            at_start = frozenset(before.values()) if at_start is None else at_start
            if name is not None or key in before or mark not in at_start:
                where = path if name is None else f"{path}[{name!r}]"
                raise NotReachable(GROWN.format(where, why)) from why
    return found


def _kinds(there: Holdings, before: Mapping[Place, Mark]) -> dict[str, Plain]:
    """Dicts that are no plain ones, of which nothing was there `before`: an empty one by path."""
    known = {path for path, _ in before}
    return {
        path: Packing([]).pack(dict_kinds.empty(holder))
        for path, holder, _, _ in there.holders
        if type(holder) in DICTS and type(holder) is not dict and path not in known
    }


def put(
    there: Holdings,
    spaces: Spaces,
    told: Sequence[tuple[str, Any, Any]],
    lie: Container[Place] | None = None,
) -> list[tuple[str, Any, Any]]:
    """Put values where they were found, and return those of variables, as `put_in_place` does.
    Raises NotReachable where nothing would hold them.
    """
    holders, variables = _holders(there), dict(spaces)
    anew: list[tuple[str, Any, Any]] = []
    for path, name, packed in told:
        value = raw_memory.made(packed)
        if path in variables:
            if not _fill((path, name), variables[path], value, lie):
                anew.append((path, name, value))  # a loop's own variables come by themselves
            continue
        if type(value) in DICTS and name is None:
            if path not in holders:
                _put_new(holders, path, value)
                holders[path] = value
            elif value:  # an empty one is the kind of a dict
                fill(holders[path], value)
            continue
        if name is None:
            if not fill(holders.get(path), value):
                _put_new(holders, path, value)
            continue
        if path not in holders:
            made: dict[Any, Any] = {}
            _holder(holders, path)[path.rpartition(".")[2]] = holders[path] = made
        named = _named(holders[path])
        if not _fill((path, name), named, value, lie):
            named[name] = value
    return anew


def _fill(key: Place, named: Mapping[Any, Any], value: Any, lie: Container[Place] | None) -> bool:
    moved = lie is not None and key not in lie and memory_places.of(value) is not None
    return not moved and fill_elements(named.get(key[1]), value)


def _variable(path: str, name: Any) -> Any:
    """The variable by which it was found."""
    return name if path.startswith("<") else _FIRST.split(path, maxsplit=1)[0]


def _holders(there: Holdings) -> dict[str, Any]:
    return {path: one for path, one in [*there.held, *there.tuples] if path}


def _named(holder: Any) -> MutableMapping[Any, Any]:
    """The members of a holder. Those of a tuple can change in place alone."""
    return dict(enumerate(holder)) if isinstance(holder, tuple) else named_in(holder)


def _holder(holders: Mapping[str, Any], path: str) -> Any:
    parent = path.rpartition(".")[0]
    if parent not in holders:
        raise NotReachable(GONE.format(path))
    return named_in(holders[parent])


def _put_new(holders: Mapping[str, Any], path: str, value: Any) -> None:
    """Put a list where there is none. What lies in a tuple has come with it.

    Raises NotReachable.
    """
    around, name = plain_values.place_of(path)
    if around in holders and type(holders[around]) not in WHOLE:
        named_in(holders[around])[name] = value
    elif not path.endswith("]") or type(_holder(holders, around).get(_last(around))) is not tuple:
        raise NotReachable(GONE.format(path))


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _all(
    there: Holdings, spaces: Spaces, mark_of: Callable[[Any], Mark] | None = None
) -> Iterator[tuple[Place, Any, Mark]]:
    """A value that may change, with its mark."""
    mark_of = mark_of or value_marks.mark_of
    for space, variables in spaces:
        for name, value in list(variables.items()):
            kind: Any = type(value)
            if not _may_change(kind) or name.startswith("__"):
                continue
            if mark := mark_of(value):
                yield (space, name), value, mark
    for path, holder, _, objects in there.holders:
        if isinstance(holder, SEQUENCES) and (mark := _mark_of_list(holder)):
            yield (path, None), holder, mark
        elif type(holder) in DICTS and len(holder) > LONG_CONTAINER:
            yield (path, None), holder, content_marks.mark_of(holder)
        for name, value in objects:
            kind = type(value)
            if not _may_change(kind) or type(name) not in (str, int):
                continue
            if kind is torch.nn.Parameter and path.endswith(plain_values.OF_MODULES):
                continue  # it comes with its module
            mark = mark_of(value)
            if not mark:
                continue
            if is_distributed(value) or _is_large(value) or kind is torch.nn.Parameter:
                yield (path, name), value, mark
    for path, held in there.tuples:
        for place, value in enumerate(held if path else ()):
            if mark := mark_of(value):
                yield (path, place), value, mark


def _mark_of_list(holder: Any) -> Mark:
    """() of an empty plain one: it is a plain value."""
    items = _items(holder)
    if len(items) > LONG:
        return content_marks.mark_of(items)
    if items and tuple in (type(items[0]), type(items[-1])):  # nothing is told of numbers in these
        return content_marks.mark_of(items, attributes=False)
    if items:
        return len(items), id(items[0]), id(items[-1])
    return () if type(holder) in SEQUENCES else (0,)


def _items(holder: Any) -> Any:
    """The items of a list or deque. Methods of another class than these may do more."""
    if type(holder) in SEQUENCES:
        return holder
    return list((list if isinstance(holder, list) else deque).__iter__(holder))


def _is_large(value: Any) -> bool:
    """False of what comes with plain values."""
    return raw_memory.is_raw(value) or cannot_travel(value) or value.nbytes >= LOOSE_BYTES


def _plain(value: Any) -> Any:
    if raw_memory.is_raw(value):
        return raw_memory.told(value)
    return _items(value) if isinstance(value, SEQUENCES) else value


@lru_cache(maxsize=1 << 14)
def _may_change(kind: Any) -> bool:
    """True of what code changes in place. Kept for each kind, and asked of each value: numpy may be
    imported later, but no value of its kinds was there before.
    """
    return issubclass(kind, (torch.Tensor, *raw_memory.KINDS, *array_kinds()))


def _tensors(there: Holdings, spaces: Spaces) -> Iterator[tuple[Place, Any, Mark]]:
    """The tensors that may change."""
    found = _all(there, spaces, mark_of_tensor)
    return (one for one in found if isinstance(one[1], torch.Tensor))
