"""What transactions earlier in an iteration left, for code that goes on from there.

    loss(model(x)).backward()                        # one transaction
    for p in model.parameters():
        p.add_(0.05 * p.grad / norm)                 # sharpness-aware minimization
    loss(model(x)).backward()                        # another one

Who executes the second microbatch again passes over the first backward, which is over; its code
goes on to read the gradients that this one left. All ranks have the same, so they are kept until
the iteration ends, if it is known to have more than one transaction, or not known yet. And it
changes parameters that have been changed already: in a microbatch of a transaction they are, at
every forward pass, what they are now (`Weights`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recoverrun.hooks.runtime import Microbatch, Place, Top

MOST = 4
"""Transactions of an iteration that leave gradients here; a whole epoch's are not kept."""

Gradients = list[tuple[Tensor, Tensor]]
"""Parameters, and what their `grad` was."""


@dataclass(slots=True)
class Earlier:
    """Transactions of the present iteration that are over."""

    _left: list[tuple[tuple[Place, ...], Gradients]] = field(default_factory=list)
    _several: dict[str, bool] = field(default_factory=dict)
    """By loop: does an iteration have several transactions, and few enough to be kept?"""
    _first: bool = True

    def begins(self, top: Top) -> None:
        """Another iteration from which microbatches are executed again."""
        if self._left:
            self._left = [one for one in self._left if any(at.top is top for at in one[0])]

    def ended(
        self, microbatches: Sequence[Microbatch], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        """A transaction is over; gradients are what it left."""
        loop = microbatches[-1].top.loop.id
        if microbatches[0].place.skip:
            self._several.setdefault(loop, True)
        if len(self._left) >= MOST:
            self._several[loop] = False
            self._left.clear()
        first, self._first = self._first, False
        if not first and not self._several.get(loop, False):
            return
        params = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        # Of the first one nobody knows yet whether it is wanted: the device may lack the memory.
        where = torch.device("cpu") if first else None
        kept = [(p, p.grad.detach().to(where, copy=True)) for p in params if p.grad is not None]
        self._left.append((microbatches[-1].places, kept))

    def give(self, top: Top, passed: int) -> None:
        """The backward that is number `passed` of the iteration has been passed over."""
        for places, kept in self._left:
            if any(place.top is top and place.skip == passed for place in places):
                for param, gradient in kept:
                    param.grad = gradient.to(param.device, copy=True)


class Weights:
    """Parameters that re-executed code may change, and what they are in this transaction."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._kept = [(param, param.detach().clone()) for param in params]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Afterwards they are what they were, also to graphs that hold them."""
        params = tuple(param for param, _ in self._kept)
        with torch.autograd._unsafe_preserve_version_counter(params):  # type: ignore[attr-defined]
            try:
                yield
            finally:
                self.restore()

    def restore(self) -> None:
        with torch.no_grad():
            for param, value in self._kept:
                param.copy_(value)
