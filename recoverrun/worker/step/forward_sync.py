"""Buffers that all ranks take over from one of them as a forward begins."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

Values = dict[int, Tensor]
"""Of the buffers of a module, by their place among those that all take over."""

Buffers = Sequence[Values | None]
"""By module."""


class ForwardSync:
    """The buffers of strategies under which each rank keeps its own: none is taken over."""

    def counts(self) -> tuple[int, ...]:
        """The numbers of times that they were taken over so far, by module."""
        return ()

    def acting(
        self, rank: int, counts: Sequence[int], before: Buffers
    ) -> AbstractContextManager[None]:
        """The block in which a microbatch of `rank` is executed. It began when they had been taken
        over so many times, in the end of its microbatch before with those of `before`, if known.
        """
        return nullcontext()

    def left(self) -> Buffers:
        """The buffers of a rank that leads as the execution of its microbatch ends; None if not
        known.
        """
        return ()

    def leads(self, rank: int) -> bool:
        """True if other ranks take over the buffers of `rank`."""
        return False

    def commit(self, step: int, holders: Mapping[int, int], held: Buffers) -> None:
        """Transaction `step` is over: `holders` of a lost leading rank's, by number of module, and
        those that this process holds.
        """

    def as_leading(self) -> AbstractContextManager[None]:
        """The block in which this process does what the script does on the leading rank alone."""
        return nullcontext()
