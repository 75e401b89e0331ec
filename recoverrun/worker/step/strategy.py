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
        """A process that takes a lost rank's place divides them so, too."""

    def asked_to_reduce(self) -> bool | None:
        """A script that reduces by itself says so after the backward: executed code has ended."""
        return None

    def begin(self) -> None:
        """Former gradients are no part of the transaction's sums, or the same on all."""


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
        """Begin as all have begun."""
        self.protect()

    def standing(self) -> list[tuple[int, int]]:
        """Un-reduced sums are not sharded, and lie where no script looks."""
        return []

    def empty(self) -> bool:
        """So nobody knows."""
        return False

    def whole(self) -> list[torch.Tensor]:
        """None."""
        return []

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for module in self.roots() for buffer in module.buffers()]


class Strategy(Protocol):
    """Serves the gradients of one script. docs/injection.md tells how to add one."""

    name: str
    early: bool  # takes gradients as the backward brings them: hooks in it see none, or part sums
    alone: bool  # where a replica is one rank, that can run forward and backward by itself

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
        """Those of the present transaction."""

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
