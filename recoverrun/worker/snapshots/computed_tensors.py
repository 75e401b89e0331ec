"""Tensors that require a gradient and that nothing else tells of: the state that a recurrent
network keeps in an attribute from one batch to the next, a weight that the script moves by hand.

Marks of tensors (`arrival.value_marks`) leave these out: most are what a step computes and the next
one makes anew. But nobody can tell which are read before that, so a snapshot has all of them. The
graph behind one is used up once its step is over: it comes back without, and one that the script
had made by itself comes back as such, with its gradient.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from recoverrun.worker.arrival import rebound_variables
from recoverrun.worker.arrival.packing import CannotTravel, Packing, Plain, unpack, unsendable
from recoverrun.worker.arrival.plain_values import KEYS, OF_MODULES
from recoverrun.worker.arrival.value_places import Spaces
from recoverrun.worker.context.object_graph import Holdings
from recoverrun.worker.context.object_views import named_in

MOST_BYTES = 1 << 26
"""Of the tensors of one value: larger ones are activations."""

DEPTH = 4
"""Tuples within tuples: of layers, of states."""


def told(
    there: Holdings, spaces: Spaces, bound: frozenset[str], packing: Packing
) -> list[list[Plain]]:
    """Plain values for msgpack. Variables that loops have `bound` come by themselves, as parameters
    do.
    """
    params = {id(one) for _, module in there.modules for one in module._parameters.values()}
    found: list[list[Plain]] = []
    for (path, name), value, parts in _all(there, spaces):
        if path.startswith("<") and name in bound:
            continue
        if any(packing.is_here(one) or id(one) in params or _is_view(one) for one in parts):
            continue
        with suppress(CannotTravel):  # a tuple that holds other objects, too
            packed = packing.pack(value, f"{path}[{name!r}]")
            found.append([path, name, packed, _gradient(value, packing)])
    return found


def put(
    told: Sequence[Sequence[Any]],
    tensors: Sequence[torch.Tensor],
    held: tuple[Holdings, Spaces],
    frames: Sequence[FrameType],
    *,
    here: Sequence[torch.Tensor],
) -> None:
    """Put them where they were found: `frames` are those of the first spaces. A tensor that others
    may hold as well gets its elements where it lies.
    """
    there, spaces = held
    holders, variables = {path: one for path, one in there.held if path}, dict(spaces)
    for path, name, packed, gradient in told:
        value = unpack(packed, tensors, here=here)
        if isinstance(value, torch.Tensor) and value.requires_grad and gradient is not None:
            value.grad = unpack(gradient, tensors)
        if path in variables:
            if not _fill(variables[path].get(name), value):
                rebound_variables.bind_one(path, name, value, spaces, frames)
        elif path in holders and not _fill(named_in(holders[path]).get(name), value):
            named_in(holders[path])[name] = value


def _all(
    there: Holdings, spaces: Spaces
) -> Iterator[tuple[tuple[str, Any], Any, list[torch.Tensor]]]:
    """Values of which some tensor requires a gradient, with their tensors."""
    for space, variables in spaces:
        for name, value in list(variables.items()):
            if not name.startswith("__") and _are_computed(parts := _tensors(value, DEPTH)):
                yield (space, name), value, parts
    for path, _, _, objects in there.holders:
        if path.endswith(OF_MODULES):
            continue
        for name, value in objects:
            if type(name) in KEYS and _are_computed(parts := _tensors(value, DEPTH)):
                yield (path, name), value, parts


def _are_computed(parts: list[torch.Tensor]) -> bool:
    return (
        any(one.requires_grad for one in parts) and sum(one.nbytes for one in parts) <= MOST_BYTES
    )


def _tensors(value: Any, depth: int) -> list[torch.Tensor]:
    """The tensor itself, or those of a tuple; [] of any other value."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return [value]
    if not isinstance(value, tuple) or not depth:
        return []
    return [one for part in value for one in _tensors(part, depth - 1)]


def _is_view(tensor: Any) -> bool:
    """True of what shows a part of a parameter, as FSDP1 leaves in place of these."""
    return isinstance(tensor._base, torch.nn.Parameter) or bool(unsendable(tensor))


def _gradient(value: Any, packing: Packing) -> Plain:
    if not isinstance(value, torch.Tensor) or not (value.requires_grad and value.is_leaf):
        return None
    found = value.grad
    return None if found is None or unsendable(found) else packing.pack(found, "gradient")


def _fill(present: Any, value: Any) -> bool:
    """True if there is a leaf like it, which has its elements and its gradient now."""
    if not isinstance(value, torch.Tensor) or type(present) is not type(value):
        return False
    if not (present.requires_grad and present.is_leaf and value.requires_grad):
        return False
    if (present.shape, present.dtype) != (value.shape, value.dtype):
        return False
    present.detach().copy_(value.detach())
    present.grad = value.grad
    return True
