"""States of optimizers as the snapshot before has packed them.

A state is a dict for each parameter, whose tensors are the same objects from step to step: their
elements are told, and how they are packed does not change. As long as all of them are the very ones
that were packed under the same numbers, and lie where they lay, nothing of it is packed again.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any

import torch

from recoverrun.worker.arrival.packing import Packing, Plain

_KEYS = frozenset({int, str})


@dataclass(frozen=True, slots=True)
class _Flat:
    """The tensors of a dict of dicts, one dict behind the other, and all keys."""

    keys: list[Any]
    sizes: list[int]
    names: list[Any]
    tensors: list[torch.Tensor]

    @property
    def addresses(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self.tensors))


@dataclass(frozen=True, slots=True)
class _Former:
    """One as it was packed, under the numbers from `first` on."""

    shape: tuple[list[Any], list[int], list[Any]]
    tensors: list["weakref.ref[torch.Tensor]"]
    addresses: list[int]
    first: int
    written: list[str]
    plain: Plain


class PackedStates:
    """The states of one rank, by name. Tensors are held weakly: a script may drop them."""

    def __init__(self) -> None:
        self._former: dict[str, _Former] = {}

    def pack(self, packing: Packing, value: object, name: str) -> Plain:
        """Pack as `packing` does. Raises CannotTravel."""
        flat, former = _flat(value), self._former.pop(name, None)
        if flat is None or not _are_new(flat.tensors, packing):
            return packing.pack(value, name)
        first = len(packing.tensors)
        if former is not None and _is_the_same(flat, former, first):
            packing.add(flat.tensors, former.written)
        else:
            plain = packing.pack(value, name)
            shape, written = (flat.keys, flat.sizes, flat.names), packing.names[first:]
            refs = list(map(weakref.ref, flat.tensors))
            former = _Former(shape, refs, flat.addresses, first, written, plain)
        self._former[name] = former
        return former.plain


def _flat(value: object) -> _Flat | None:
    """None if it is anything else, or one requires a gradient."""
    if type(value) is not dict or set(map(type, value.values())) != {dict}:
        return None
    inner: Sequence[Mapping[Any, Any]] = list(value.values())
    keys, names = list(value), list(chain.from_iterable(inner))
    tensors: list[Any] = list(chain.from_iterable(one.values() for one in inner))
    if set(map(type, tensors)) != {torch.Tensor} or not _KEYS.issuperset(map(type, keys + names)):
        return None
    if any(one.requires_grad for one in tensors):
        return None
    return _Flat(keys, list(map(len, inner)), names, tensors)


def _are_new(tensors: Sequence[torch.Tensor], packing: Packing) -> bool:
    """True if each of them comes once, and gets the next number."""
    numbers = set(map(id, tensors))
    return len(numbers) == len(tensors) and not packing.has_any(numbers)


def _is_the_same(flat: _Flat, former: _Former, first: int) -> bool:
    if first != former.first or (flat.keys, flat.sizes, flat.names) != former.shape:
        return False
    same = all(map(is_, flat.tensors, (ref() for ref in former.tensors)))
    return same and flat.addresses == former.addresses
