"""Accumulators that are the `grad` of plain parameters, out of the way and back."""

from collections.abc import Iterable, Sequence

import torch


def accumulators(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]


def set_aside(params: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """No gradients in their place, for what comes in between; `put_back` gives them back."""
    kept = [param.grad for param in params]
    clear(params)
    return kept


def clear(params: Iterable[torch.Tensor]) -> None:
    for param in params:
        param.grad = None


def put_back(params: Sequence[torch.Tensor], kept: Sequence[torch.Tensor | None]) -> None:
    for param, gradient in zip(params, kept, strict=True):
        param.grad = gradient


def standing(params: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Counts that show if gradients were written to: 0, 0 where there is none."""
    grads = [param.grad for param in params]
    return [(0, 0) if grad is None else (id(grad), grad._version) for grad in grads]


def empty(params: Iterable[torch.Tensor]) -> bool:
    """True if there is nothing in any of the gradients."""
    held = [param.grad.detach() for param in params if param.grad is not None]
    return not any(bool(one.any()) for one in held)
