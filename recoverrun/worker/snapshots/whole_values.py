"""Tuples and sets, and dicts with other keys than numbers and texts: they come as a whole or not at
all, as nothing within them has a place that could be given another value.

Small plain ones are plain values (`arrival.plain_values`), and tensors in a tuple that was there as
the run began change where they lie (`arrival.loose_values`). What is left is told here once another
one is there: a tuple that holds large tensors or a dict (`self.best = loss, weights`). One that
holds objects cannot be told, and ends snapshots.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from recoverrun.worker.arrival import plain_values, value_marks
from recoverrun.worker.arrival.container_contents import SEQUENCES
from recoverrun.worker.arrival.generator_states import OF_LOOPS
from recoverrun.worker.arrival.new_objects import DICT
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain
from recoverrun.worker.arrival.sharded_tensors import local
from recoverrun.worker.arrival.structure import variable_of
from recoverrun.worker.arrival.value_kinds import is_value
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import LONG, Holdings
from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.context.object_views import PLAIN
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots.large_values import CHANGED, dicts_of
from recoverrun.worker.tracking.microbatches import LoopFrame

Mark = tuple[Any, ...]

DEPTH = 4
"""Tuples within tuples."""

_PLAIN, _OF_PLACES = frozenset(PLAIN), frozenset(plain_values.KEYS)


class WholeValues:
    """Those of one process, as the run began."""

    def __init__(self, there: Holdings, spaces: Spaces) -> None:
        self._variables = {(space, name) for space, names in spaces for name in list(names)}
        self._before = {key: _mark_of(value) for key, value in _all(there, spaces)}
        self._doubtful: dict[Place, tuple[Any, Sequence[int]]] = {}

    def told(
        self,
        held: tuple[Holdings, Spaces],
        stack: Sequence[LoopFrame],
        packing: Packing,
        *,
        whole: set[str],
        passed: Callable[[str], bool],
    ) -> tuple[list[list[Plain]], list[list[Plain]]]:
        """Plain values for msgpack, of those that are others now, as `large_values.told` returns
        them. What loops of `stack` bind, or their headers make, comes by itself, as does what lists
        hold that are told as a `whole`. What modules hold that are `passed` by their paths is their
        library's.

        Raises NotReachable where one cannot be told, and no code between loops makes it again.
        """
        values: list[list[Plain]] = []
        variables: list[list[Plain]] = []
        bound, doubtful = plain_values.bound_by(stack), dict[Place, tuple[Any, Sequence[int]]]()
        dicts = dicts_of(held[0])
        around, at_start = [one.iteration for one in stack[:-1]], frozenset(self._before.values())
        for key, value in _all(*held):
            (path, name), is_variable = key, key[0].startswith("<")
            mark, known = _mark_of(value), self._before.get(key)
            if mark == known or (known is None and mark in at_start) or variable_of(key) in bound:
                continue
            if is_variable and key not in self._variables:
                continue  # of a function that was called since: it is called again
            if path.startswith(OF_LOOPS) or passed(path) or plain_values.is_within(path, whole):
                continue
            where = str(name) if is_variable else f"{path}[{name!r}]"
            try:
                plain = packing.pack(value, where)
            except CannotTravel as why:
                one, since = self._doubtful.get(key, (value, around))
                since = since if one is value else around
                if not around or since != around:
                    raise NotReachable(CHANGED.format(where, why)) from why
                doubtful[key] = value, since
                continue
            if is_variable:
                variables.append([path, name, plain])
            else:
                values.append([path, name, DICT if path in dicts else "", plain])
        self._doubtful = doubtful
        return values, variables


def _all(there: Holdings, spaces: Spaces) -> Iterator[tuple[Place, Any]]:
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if not name.startswith("__") and _is_whole(value):
                yield (space, name), value
    for path, holder, _, objects in there.holders:
        if isinstance(holder, SEQUENCES) or path in plain_values.NOT_OURS:
            continue  # a list is told with all that is in it
        if path.endswith((*plain_values.HOOKS, *plain_values.OF_MODULES)):
            continue
        for name, value in objects:
            if type(name) in plain_values.KEYS and _is_whole(value):
                yield (path, name), value


def _is_whole(value: Any) -> bool:
    """True of those that are no plain value."""
    kind: Any = type(value)
    if issubclass(kind, tuple):
        return len(value) <= LONG and not _is_plain(value) and not _is_computed(value, DEPTH)
    if (kind not in (set, frozenset) and kind not in DICTS) or len(value) > LONG:
        return False
    kinds = set(map(type, list(value)))
    if kinds <= _OF_PLACES or any(issubclass(one, torch.Tensor) for one in kinds):
        return False  # it has places; or see `values_by_parameter`
    return plain_values.entry_of(("", None), value) is None


def _is_plain(value: tuple[Any, ...]) -> bool:
    if _PLAIN.issuperset(map(type, value)) and is_value(type(value)):
        return True
    entry = plain_values.entry_of(("", None), value)
    return entry is not None and not entry.tensors


def _is_computed(value: Any, depth: int) -> bool:
    """True if it holds a tensor that requires a gradient: see `computed_tensors`."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return (
        isinstance(value, tuple)
        and bool(depth)
        and any(_is_computed(one, depth - 1) for one in value)
    )


def _mark_of(value: Any) -> Mark:
    """Another one tells that another one is there, and of all but tuples what they hold."""
    if isinstance(value, tuple):
        return tuple(map(_mark_of_part, value))
    if isinstance(value, dict):
        return tuple((_mark_of_part(one), _mark_of_held(two)) for one, two in list(value.items()))
    return tuple(sorted(map(_mark_of_held, list(value)), key=repr))


def _mark_of_part(one: Any) -> Any:
    kind: Any = type(one)
    if kind in _PLAIN:
        return kind, one
    if issubclass(kind, tuple):
        return tuple(map(_mark_of_part, one))
    if issubclass(kind, torch.Tensor) and one.layout is torch.strided and not one.is_meta:
        return local(one).data_ptr(), tuple(one.shape)
    return id(one)


def _mark_of_held(one: Any) -> Any:
    return value_marks.mark_of(one) or _mark_of_part(one)
