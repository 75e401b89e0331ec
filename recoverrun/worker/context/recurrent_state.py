"""Tensors that one iteration computes with gradients and hands to the next: a recurrent network's
state.

A script that trains on long sequences in pieces keeps the hidden state from piece to piece, and
cuts its graph off where the next piece begins. So the state travels without its graph.
"""

from typing import Any

import torch

DEPTH = 3
"""A tuple of layers, each a tuple of states."""


def is_handed(value: Any, limit: int) -> bool:
    """True of plain tensors that were computed, also in tuples and lists, up to `limit` bytes."""
    tensors = _tensors(value, DEPTH)
    if not tensors:
        return False
    return sum(one.numel() * one.element_size() for one in tensors) <= limit


def without_graph(value: Any) -> Any:
    """A copy of what `is_handed`."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if value is None:
        return None
    copies = [without_graph(one) for one in value]
    return copies if type(value) is list else tuple(copies)


def _tensors(value: Any, depth: int) -> list[torch.Tensor] | None:
    """None if there is anything else, such as a parameter."""
    if type(value) is torch.Tensor:
        leaf = value.requires_grad and value.grad_fn is None
        odd = value.is_quantized or value.layout is not torch.strided
        return None if leaf or odd or value.device.type == "meta" else [value]
    if type(value) not in (tuple, list) or not depth:
        return None
    found: list[torch.Tensor] = []
    for one in value:
        inside = [] if one is None else _tensors(one, depth - 1)
        if inside is None:
            return None
        found += inside
    return found
