"""The microbatches that ranks may have died of, which are not executed any more.

Code that ends a process by a signal (a decoder that crashes on one sample, a record that takes all
memory) ends everybody who executes it, at once or a little later: whoever closes the descriptors of
its process dies as it next waits for others. So a rank that dies within a transaction may have died
of each microbatch that it had begun in it. One death may be anything, and the microbatch is
executed again. Two ranks that may have died of the same one are enough: it is made up with fresh
data, and so is one that whoever was at it has given up, because it did not end or would have ended
its process. A rank that dies in a later transaction ends nobody else: its predecessor's
microbatches are committed.
"""

from collections.abc import Iterable

from recoverrun.worker.context.context_buffer import Which
from rendezvous.protocol.shared_memory import Begun
from rendezvous.protocol.views import Identity

MOST = 2
"""Ranks that may die of one microbatch."""

KILLS = "rank {rank}'s microbatch {index} of step {step} is not executed again: {why}"
DIED = "ranks {} died in it, or later in the same step"
GIVEN_UP = "rank {} has given it up"


def microbatch_id_of(step: int, identity: Identity) -> Which:
    slot, index = identity
    return slot, step, index


class DeadlyMicrobatches:
    """The deaths, and the microbatches given up, that this rank has heard of."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[Begun, ...]] = {}  # by the rank that died
        self._given_up: dict[Which, str] = {}

    def learn(self, left: Iterable[tuple[int, tuple[Begun, ...]]]) -> None:
        """Note what lost ranks had begun in the transaction in which they died; it may be said
        again.
        """
        for rank, stretches in left:
            self._begun[rank] = stretches
            for slot, step, first, _, given_up in stretches:
                if given_up:
                    self.give_up((slot, step, first), GIVEN_UP.format(rank))

    def give_up(self, which: Which, why: str) -> None:
        """Have nobody who hears of it execute that microbatch again."""
        self._given_up.setdefault(which, why)

    def objection(self, which: Which) -> str:
        """The reason why that microbatch is not executed again, "" if it may be."""
        died = [rank for rank in sorted(self._begun) if _holds(self._begun[rank], which)]
        if len(died) >= MOST:
            return DIED.format(" and ".join(map(str, died)))
        return self._given_up.get(which, "")


def _holds(stretches: tuple[Begun, ...], which: Which) -> bool:
    *of, index = which
    return any(
        [slot, step] == of and first <= index <= last for slot, step, first, last, _ in stretches
    )
