"""Accumulators that are the `grad` of plain parameters, out of the way and back."""

from collections.abc import Sequence

import torch


def accumulators(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]


def set_aside(params: Sequence[torch.Tensor]) -> object:
    """Zeros in their place, for what comes in between."""
    kept = [None if p.grad is None else p.grad.clone() for p in params]
    for param in params:
        if param.grad is not None:
            param.grad.zero_()
    return kept


def put_back(params: Sequence[torch.Tensor], kept: object) -> None:
    assert isinstance(kept, list), "what set_aside returned"
    for param, gradient in zip(params, kept, strict=True):
        if gradient is None or param.grad is None:
            param.grad = gradient
        else:
            param.grad.copy_(gradient)  # in place: it may be a view of somebody's bucket
