"""The microbatches that ranks have died in, which are not executed any more.

Code that ends a process by a signal (a decoder that crashes on one sample, a record that takes all
memory) ends everybody who executes it. One death may be anything, and the microbatch is executed
again. Two ranks that died in the same one are enough: it is made up with fresh data, and so is one
that whoever was at it has given up, because it did not end or would have ended its process.
"""

from collections.abc import Iterable

from recoverrun.worker.context.context_buffer import Which
from rendezvous.protocol.shared_memory import Doing
from rendezvous.protocol.views import Identity

MOST = 2
"""Ranks that may die in one microbatch."""

KILLS = "rank {rank}'s microbatch {index} of transaction {step} is not executed again: {why}"
DIED = "ranks {} died in it"
GIVEN_UP = "rank {} has given it up"


def which(step: int, identity: Identity) -> Which:
    slot, index = identity
    return slot, step, index


class DeadlyMicrobatches:
    """The deaths, and the microbatches given up, that this rank has heard of."""

    def __init__(self) -> None:
        self._died: dict[Which, set[int]] = {}
        self._given_up: dict[Which, str] = {}

    def learn(self, left: Iterable[tuple[int, Doing]]) -> None:
        """Note the microbatches that lost ranks died in; it may be said again. Other forms are
        ignored.
        """
        for rank, doing in left:
            match doing:
                case (slot, step, index, given_up):
                    self._died.setdefault((slot, step, index), set()).add(rank)
                    if given_up:
                        self.give_up((slot, step, index), GIVEN_UP.format(rank))

    def give_up(self, which: Which, why: str) -> None:
        """Nobody who hears of it executes that microbatch again."""
        self._given_up.setdefault(which, why)

    def forbid(self, which: Which) -> str:
        """The reason why that microbatch is not executed again, "" if it may be."""
        died = sorted(self._died.get(which, ()))
        if len(died) >= MOST:
            return DIED.format(" and ".join(map(str, died)))
        return self._given_up.get(which, "")
