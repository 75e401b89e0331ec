"""The process of a rank that an order is meant for, as orders come late, twice, or not at all.

A rank's first process has birth 0. Those that follow have the birth of the order by which their
replica starts again. A launcher begins each birth once, and ends only the one that it is told to.
"""

from collections.abc import Iterable
from typing import Literal

UNBORN = -1
"""The birth of a rank that nothing has begun of here: another launcher had it before."""

Meant = Literal["present", "former", "future"]
"""The newest process of a rank; one before it, which has ended; one that has not begun here."""


class Births:
    """The births of the `ranks` of one launcher in one attempt. `first`: their first processes
    begin here.
    """

    def __init__(self, ranks: Iterable[int], *, first: bool = True) -> None:
        self._newest = dict.fromkeys(ranks, 0 if first else UNBORN)

    def __contains__(self, rank: int) -> bool:
        return rank in self._newest

    def newest(self, rank: int) -> int:
        """The birth of the newest process of this rank, or UNBORN."""
        return self._newest[rank]

    def judge(self, rank: int, birth: int) -> Meant:
        """The relation of this rank's process to the one of that birth."""
        newest = self._newest[rank]
        if birth == newest:
            return "present"
        return "former" if birth < newest else "future"

    def use(self, rank: int, birth: int) -> None:
        """A process of this birth begins, or never will: no other one may have its number."""
        assert birth > self._newest[rank], f"INV-4: birth {birth} of rank {rank} for a second time"
        self._newest[rank] = birth
