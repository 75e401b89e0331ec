"""Addresses of tensors and arrays, by the places that hold them.

One that lies where it lay as the run began was changed in place: whatever else holds its memory, a
view or another name, sees the change, and so it has to be in a process that goes back. At any other
address it is another one, and the one that was there first may still be what another name holds.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from recoverrun.worker.arrival.elements import fill_elements
from recoverrun.worker.arrival.value_marks import TENSORS
from recoverrun.worker.arrival.value_places import Place, Spaces
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_views import named_in


def seen(there: Holdings, spaces: Spaces) -> dict[Place, int]:
    """The addresses of all plain ones."""
    held: list[tuple[str, Iterable[tuple[Any, Any]]]] = [
        *((space, list(variables.items())) for space, variables in spaces),
        *((path, objects) for path, _, _, objects in there.holders),
        *((path, enumerate(one)) for path, one in there.tuples if path),
    ]
    found = {}
    for path, items in held:
        for name, value in items:
            if (address := of(value)) is not None:
                found[path, name] = address
    return found


def of(value: Any) -> int | None:
    """None of anything else."""
    kind = type(value)
    if kind in TENSORS:
        plain = value.layout is torch.strided and not (value.is_meta or value.is_inference())
        return value.data_ptr() if plain and not value.requires_grad else None
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return int(value.__array_interface__["data"][0])
    return None


def unmoved(
    told: Iterable[Sequence[Any]], before: Mapping[Place, int], now: Mapping[Place, int]
) -> list[list[Any]]:
    """The places of what lies where it lay `before`: of those that are `told`, and of variables."""
    keys = {(path, name) for path, name, *_ in told if isinstance(name, str | int)}
    keys |= {key for key in now if key[0].startswith("<")}
    return [[*key] for key in sorted(keys, key=str) if key in now and before.get(key) == now[key]]


def held(lie: Iterable[Place], there: Holdings, spaces: Spaces) -> dict[Place, Any]:
    """The tensors and arrays that this process has at these places, before anything is put."""
    holders = _holders(there, spaces)
    found = {key: holders[key[0]].get(key[1]) for key in lie if key[0] in holders}
    return {key: value for key, value in found.items() if of(value) is not None}


def put_back(
    held: Mapping[Place, Any], there: Holdings, spaces: Spaces
) -> list[tuple[str, Any, Any]]:
    """Give what was `held` the elements of what is in its place by now, and put it there again.
    Returns the values of variables, by their spaces and names.
    """
    holders, variables = _holders(there, spaces), dict(spaces)
    anew: list[tuple[str, Any, Any]] = []
    for (path, name), value in held.items():
        holder = holders.get(path, {})
        now = holder.get(name)
        if now is value or not fill_elements(value, now):
            continue
        if path in variables:
            anew.append((path, name, value))
        else:
            holder[name] = value
    return anew


def _holders(there: Holdings, spaces: Spaces) -> dict[str, Any]:
    found: dict[str, Any] = {path: named_in(one) for path, one in there.held if path}
    return {**found, **dict(spaces)}
