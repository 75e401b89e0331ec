"""What the session asks of a way of data-parallel training; the ways are in `strategies`."""

from typing import Protocol

import torch

from ft_collectives.step.reducer import Reducer


class Strategy(Protocol):
    """Serves the gradients of one script. docs/injection.md tells how to add one."""

    name: str
    early: bool  # takes gradients as the backward brings them: hooks in it see none, or part sums
    alone: bool  # where a replica is one rank, that can run forward and backward by itself

    unlike: str  # why a script cannot be served whose ranks differ in `terms`

    @property
    def terms(self) -> str:
        """What all ranks must have found alike in the first transaction."""

    @property
    def synced(self) -> bool:
        """True if torch reduces gradients across replicas in the backward that runs or ended."""

    def digest(self) -> int:
        """Of this rank's gradient of the backward that has ended; 0 if that cannot be compared."""

    def protect(self) -> None:
        """The first transaction is over, which torch reduced: from now on this strategy does."""

    def begin(self) -> None:
        """The first backward of a transaction begins."""

    def backward_begins(self) -> None:
        """A backward of the script's own begins."""

    def backward_done(self) -> None:
        """It has ended."""

    def reducers(self) -> list[Reducer]:
        """Those of the present transaction."""

    def standing(self) -> list[tuple[int, int]]:
        """What tells whether the script has written to sums that are not reduced yet."""

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
        """What a forward pass may change in the model beside gradients, such as running means."""

    def whole(self) -> list[torch.Tensor]:
        """Trained parameters that every replica holds whole; none where they are sharded."""

    def parameters(self) -> dict[str, torch.Tensor]:
        """Local parameters (shards where sharded) by name."""
