"""The interface of a way of data-parallel training; the ways are in `strategies`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from ft_collectives.step.reducer import Reducer
from recoverrun.worker.step.forward_sync import ForwardSync

Switched = Callable[[], AbstractContextManager[None]]


def nothing_switched() -> Switched:
    """`Strategy.switches` where code up to a backward can say nothing of reductions."""
    return nullcontext


class DividesOnce:
    """A mixin of strategies that divide gradients once for the whole run, alike on all ranks."""

    forward_sync = ForwardSync()

    def admit(self) -> None:
        """There is nothing to do: the division never changes."""

    def asked_to_reduce(self) -> bool | None:
        """Not known within the backward: a script that reduces by itself does so after it."""
        return None

    def begin(self) -> None:
        """There is nothing to set aside: earlier gradients are in no sum of the transaction, or
        equal on all ranks.
        """


class Sharding(DividesOnce, ABC):
    """A mixin of strategies that shard parameters, and divide gradients in the first backward, in
    one order on all ranks.
    """

    @abstractmethod
    def protect(self) -> None:
        """See `Strategy`."""

    @abstractmethod
    def roots(self) -> list[torch.nn.Module]:
        """See `Strategy`."""

    def plan(self) -> list[Any] | str:
        """There is nothing to tell a newcomer."""
        return []

    def adopt(self, plan: list[Any]) -> None:
        """The same as `protect`: nothing depends on `plan`."""
        self.protect()

    def standing(self) -> list[tuple[int, int]]:
        """There are none: un-reduced sums lie where no script writes."""
        return []

    def empty(self) -> bool:
        """False: sums that no script can reach are not dropped by it."""
        return False

    def whole(self) -> list[torch.Tensor]:
        """There are none: all are sharded."""
        return []

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.roots() for buffer in module.buffers()]


class Strategy(Protocol):
    """Serves the gradients of one script. CONTRIBUTING.md tells how to add one."""

    name: str
    early: bool  # takes gradients in the backward: the script's hooks see none, or part sums
    alone: bool  # a replica of one rank can run forward and backward without other ranks

    unlike: str  # why a script cannot be served whose ranks differ in `terms`

    @property
    def forward_sync(self) -> ForwardSync:
        """Buffers that all ranks take over from one of them."""

    @property
    def terms(self) -> str:
        """The facts that all ranks must have found alike in the first transaction."""

    @property
    def synced(self) -> bool:
        """True if torch reduces gradients across replicas in the backward that runs or ended."""

    def asked_to_reduce(self) -> bool | None:
        """True if by what the code has said (`no_sync`) torch would reduce in its backward: in the
        one that ended last, or in that of another rank's code, since this was asked last. None if
        code up to the backward says nothing about that.
        """

    @property
    def switches(self) -> Callable[[], Switched]:
        """Notes what the script has said of reductions by now, by blocks that are open (`no_sync`).
        Returns a block in which that is so again, for code that is executed again.
        """

    def digest(self) -> int:
        """The digest of this rank's gradient of the backward that has ended; 0 if that cannot be
        compared.
        """

    def protect(self) -> None:
        """The first transaction is over, which torch reduced: from now on this strategy does."""

    def plan(self) -> list[Any] | str:
        """The division of gradients for reduction, as plain values, for a process that takes a lost
        rank's place; or the reason why none can.
        """

    def adopt(self, plan: list[Any]) -> None:
        """Reduce gradients from now on, divided as in `plan`, in such a process."""

    def admit(self) -> None:
        """Divide the gradients as `plan` has said, where that is not done already: such a process
        takes part from the transaction on that begins now.
        """

    def begin(self) -> None:
        """The first backward of a transaction begins."""

    def backward_begins(self) -> None:
        """A backward of the script's own begins."""

    def backward_done(self) -> None:
        """A backward of the script's own has ended."""

    def reducers(self) -> list[Reducer]:
        """The reducers of the present transaction."""

    def standing(self) -> list[tuple[int, int]]:
        """Counts that show if the script has written to sums that are not reduced yet."""

    def empty(self) -> bool:
        """True if nothing is in those sums."""

    def accumulators(self) -> list[torch.Tensor]:
        """This rank's un-reduced gradient sums as they are now."""

    def set_aside(self) -> object:
        """Take all gradients away, for another rank's microbatch; `put_back` restores them."""

    def clear(self) -> None:
        """Drop what that microbatch's code has left in gradients before its backward."""

    def put_back(self, kept: object) -> None: ...

    def buffers(self) -> list[torch.Tensor]:
        """The tensors that a forward pass may change in the model beside gradients, such as running
        means.
        """

    def roots(self) -> list[torch.nn.Module]:
        """The outermost modules that hold what is trained, in the same order on all ranks."""

    def whole(self) -> list[torch.Tensor]:
        """Trained parameters that every replica holds whole; none where they are sharded."""

    def parameters(self) -> dict[str, torch.Tensor]:
        """Local parameters (shards where sharded) by name."""
