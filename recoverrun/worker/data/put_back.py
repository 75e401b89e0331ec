"""The contents of objects at one moment, to be put back where they lie.

To pass the items of a loader again runs code of its sampler and data set, which may count, draw or
take items out of a container. What that changes in them is no part of the place that is sought.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from recoverrun.worker.data.loader_keepers import CONTAINERS, refilled
from recoverrun.worker.data.numpy_arrays import is_array
from recoverrun.worker.data.object_copy import (
    ARRAY_BYTES,
    IMMUTABLE,
    MAX_ITEMS,
    MAX_OBJECTS,
    MAX_SHALLOW_ITEMS,
    attributes_of,
    is_foreign,
)
from recoverrun.worker.rng import object_generators

MOST_BYTES = 1 << 28
"""Of all arrays together."""


class Contents:
    """All that `roots`, and what they lead to, hold now. Larger containers than data sets keep for
    themselves are not looked into, and larger arrays are data.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._undo: list[Callable[[], None]] = []
        self._left = MOST_BYTES
        self._kept: list[Any] = []  # alive, so that no identity comes twice
        todo, seen = list(roots), set[int]()
        while todo and len(seen) < MAX_OBJECTS:
            one = todo.pop()
            if type(one) in IMMUTABLE or id(one) in seen:
                continue
            seen.add(id(one))
            self._kept.append(one)
            todo += self._note(one)

    def put_back(self) -> None:
        """A container that has taken the place of another takes its content: a generator may hold
        the same one.
        """
        for undo in reversed(self._undo):  # what is deep comes first
            undo()

    def _note(self, one: Any) -> Iterator[Any]:
        """Note how it is put back, and return what is in it."""
        kind = type(one)
        if object_generators.is_generator(one):
            state = object_generators.state_of(one)
            self._undo.append(partial(object_generators.put_state, one, state))
        elif isinstance(one, torch.Tensor) or is_array(one):
            if _may_be_written(one) and one.nbytes <= min(ARRAY_BYTES, self._left):
                self._left -= one.nbytes
                self._undo.append(_undoing_array(one))
        elif isinstance(one, CONTAINERS):
            if len(one) <= MAX_SHALLOW_ITEMS:
                self._undo.append(_undoing_container(one))
            if len(one) <= MAX_ITEMS and not isinstance(one, set):
                yield from list(one.values()) if isinstance(one, dict) else list(one)
        elif kind is tuple:
            yield from one
        elif not is_foreign(kind) and not isinstance(one, type):
            held = attributes_of(one)
            if held is not None:
                self._undo.append(partial(_give_attributes, held, dict(held)))
                yield from list(held.values())


def _undoing_container(one: Any) -> Callable[[], None]:
    """It may be of a class of the script's, whose methods do more."""
    plain: Any = next(kind for kind in CONTAINERS if isinstance(one, kind))
    held = plain(one)
    add = plain.extend if plain in (list, deque) else plain.update

    def undo() -> None:
        plain.clear(one)
        add(one, held)

    return undo


def _give_attributes(attributes: dict[str, Any], held: dict[str, Any]) -> None:
    kept = {name: attributes.get(name) for name in held}
    attributes.clear()
    for name, value in held.items():
        attributes[name] = kept[name] if refilled(kept[name], value) else value


def _undoing_array(one: Any) -> Callable[[], None]:
    if not isinstance(one, torch.Tensor):
        array = one.copy()
        return lambda: one.__setitem__(..., array)
    values = one.detach().clone()

    def undo() -> None:
        if not torch.equal(one.detach(), values):
            one.detach().copy_(values)

    return undo


def _may_be_written(array: Any) -> bool:
    if not isinstance(array, torch.Tensor):
        return bool(array.flags.writeable)
    plain = array.layout == torch.strided and array.device.type == "cpu"
    return plain and not array.is_inference()
