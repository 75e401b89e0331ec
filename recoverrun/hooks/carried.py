"""Gradients that a script keeps from one commit point to the next.

    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)      # after every backward
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()

What was delivered and not dropped is the same on all ranks. Where the next backward would add to
it, it is no rank's own part of a sum: a lost rank would take its share of it along. So it is put
aside before a step's first backward, and added again to what that step delivers. Where gradients
come from accumulators of our own (a `Lender`), that is how they are delivered anyway.
"""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

REDUCED_TWICE = (
    "the script reduces gradients by hand that it has reduced before: a lost rank's part in them "
    "cannot be told"
)


class Carried:
    """What the present step finds in the gradients, and gives back."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._delivered = False
        self._kept: list[tuple[Any, torch.Tensor]] = []

    def backward_begins(self) -> None:
        """Before a backward of the script's own."""
        session = self._session
        strategy = session.strategy
        if not self._delivered or session.dirty or session.acting or not session.runtime.active:
            return
        if strategy is None or strategy.lender is not None:
            return
        held = [one for one in strategy.owners() if one.grad is not None]
        if not held or not _any([one.grad.detach() for one in held]):
            return
        if not strategy.early:
            session.refuse(REDUCED_TWICE)
            session.runtime.active = False
            return
        self._kept = [(one, one.grad.detach().clone()) for one in held]
        for one in held:
            one.grad.detach().zero_()

    def deliver(self) -> None:
        """The step is applied: its gradients are there."""
        kept, self._kept, self._delivered = self._kept, [], True
        for owner, gradient in kept:
            if owner.grad is None:
                owner.grad = gradient
            else:
                owner.grad.detach().add_(gradient)

    def drop(self) -> None:
        """The script drops its gradients."""
        self._kept = []


def _any(gradients: list[torch.Tensor]) -> bool:
    norms: Any = torch._foreach_norm(gradients, float("inf"))
    return bool(torch.stack([norm.to("cpu", torch.float64) for norm in norms]).any())
