"""What the session asks of a way of data-parallel training; the ways are in `strategies`."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch


class Lender(Protocol):
    """Lets the script see its own gradients, where it would see none before they are reduced."""

    parts: int  # in which the backward that runs comes; it reduces by itself after the last
    divisor: int  # of what it adds to the accumulators

    def lend(self) -> None: ...

    def seen(self) -> list[torch.Tensor]:
        """The gradients that the script sees: what was lent, or what was delivered."""

    def take_back(self) -> None:
        """What was lent is gone, with all that the script did to it."""


class Strategy(Protocol):
    """Serves the gradients of one model. docs/injection.md tells how to add one."""

    name: str
    early: bool  # takes gradients as the backward brings them: hooks in it see none, or part sums

    @property
    def lender(self) -> Lender | None:
        """None where the accumulators are the very gradients that the script sees."""

    @property
    def synced(self) -> bool:
        """Had torch reduced the gradients by the end of the last backward?"""

    def owners(self) -> list[Any]:
        """What has the gradients that the script sees, each as `grad`."""

    def accumulators(self) -> list[torch.Tensor]:
        """This rank's un-reduced gradient sums as they are now."""

    def set_aside(self) -> object:
        """Take the accumulators away, for a rehearsal; `put_back` restores them exactly."""

    def put_back(self, kept: object) -> None: ...

    def drop(self, params: Iterable[torch.Tensor]) -> bool:
        """Forget the accumulators if `params` are all that is trained; False if they are not."""

    def buffers(self) -> list[torch.Tensor]:
        """What a forward pass may change in the model beside gradients, such as running means."""

    def parameters(self) -> dict[str, torch.Tensor]:
        """Local parameters (shards where sharded) by name."""
