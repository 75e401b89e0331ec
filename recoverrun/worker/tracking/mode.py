"""The rank that the code which runs now stands for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, which the script imports when it wants to
    from recoverrun.worker.rng.streams import Streams


class ExecutionMode:
    """The mode of one process: the only owner of that fact."""

    def __init__(self) -> None:
        self.acting_rank: int | None = None  # the rank as which code is executed again
        self.speaks_as: int | None = None  # in a child: the rank whose code began it
        self.untold: Streams | None = None  # in another's place: not its own, to be seeded first
        self.active = True  # False in what the script forks, and where it cannot be served

    @contextmanager
    def as_rank(self, rank: int, untold: "Streams | None" = None) -> Iterator[None]:
        """Code within is executed as `rank`; where torch's streams stand may be `untold`."""
        before, self.acting_rank, self.untold = (self.acting_rank, self.untold), rank, untold
        try:
            yield
        finally:
            self.acting_rank, self.untold = before

    @contextmanager
    def named(self, rank: int) -> Iterator[None]:
        """Data are read within as `rank` would read them."""
        before, self.acting_rank = self.acting_rank, rank
        try:
            yield
        finally:
            self.acting_rank = before

    def retire(self) -> None:
        """Torch goes on by itself: nothing is noted of the script any more."""
        self.active = False

    def forked(self) -> None:
        """This is a process that the script has forked."""
        self.active = False
        self.speaks_as, self.acting_rank = self.acting_rank, None

    def tries(self) -> None:
        """This is a child of ours, in which a proof is made."""
        self.active, self.speaks_as = True, None
