"""The rank that the code which runs now stands for."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

from recoverrun.worker.tracking.busy_threads import busy_threads

if TYPE_CHECKING:  # it imports torch, which the script imports when it wants to
    from recoverrun.worker.rng.streams import Streams


class ExecutionMode:
    """The mode of one process: the only owner of that fact."""

    def __init__(self) -> None:
        self.acting_rank: int | None = None  # the rank as which code is executed again
        self.speaks_as: int | None = None  # in a forked child: the rank as which its parent acted
        self.untold: Streams | None = None  # torch's streams where the acted rank's are unknown
        self._busy: frozenset[int] = frozenset()  # threads that go on with their own work
        self.active = True  # False in what the script forks, and where it cannot be served

    @property
    def acting_here(self) -> int | None:
        """The rank that this thread acts as: None in one that goes on with work of its own."""
        return None if self.acting_rank is None or get_ident() in self._busy else self.acting_rank

    @contextmanager
    def as_rank(self, rank: int, untold: "Streams | None" = None) -> Iterator[None]:
        """Code within is executed as `rank`; where torch's streams stand may be `untold`."""
        before = self.acting_rank, self.untold, self._busy
        if self.acting_rank is None:
            self._busy = busy_threads()  # before `acting_rank` is set: threads read it at any time
        self.acting_rank, self.untold = rank, untold
        try:
            yield
        finally:
            self.acting_rank, self.untold, self._busy = before

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
