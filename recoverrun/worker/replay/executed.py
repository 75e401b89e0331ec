"""The result of a microbatch that is executed as another rank."""

from dataclasses import dataclass, replace

from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.registry import MAX_GENERATORS
from recoverrun.worker.step.forward_sync import Buffers

TALKS = (
    "what the ranks tell each other before the backward (a count of tokens, say) changes the "
    "gradient, and a lost rank's value is unknown"
)

STEERS = (
    "what the ranks tell each other before the backward (a flag, say) may decide whether it is "
    "reached, and a lost rank's value is unknown"
)

CROWDED = f"the script holds more than {MAX_GENERATORS} generators of random numbers"


class NothingReached(NotReplayable):
    """The code of a loop came to its end before the backward that was wanted."""

    def __init__(self, loop: str) -> None:
        super().__init__(f"re-executing {loop} reached no backward")


class Misled(NotReplayable):
    """A false result of a collective made the code raise, end, or pass the backward by."""


@dataclass(frozen=True, slots=True)
class Executed:
    """The result of a microbatch that was executed as another rank."""

    mark: Mark
    entered: frozenset[int]  # digests of inputs up to each forward
    door: int  # digest of what entered the model first, and of the random streams then
    after: Context | None  # where that rank stands at its end; None if that was not reached
    buffers: Buffers = ()  # at its end, of a rank from which all take them over
    inputs: int = 0  # digest of what entered the model since the backward before

    def of_rank_at(self, theirs: Context) -> "Executed":
        """The same, with what no execution changes as it was at `theirs`, where the rank began."""
        if self.after is None:
            return self
        streams = self.after.streams.with_private(theirs.streams.private)
        after = replace(
            self.after, streams=streams, loaders=theirs.loaders, alone_at=theirs.alone_at
        )
        return replace(self, after=after)


def require_count(rank: int | None, ours: bool | None, theirs: bool | None) -> None:
    """Raise NotReplayable where `rank` goes on accumulating after a microbatch and we reduce, or
    the other way round (`Strategy.asked_to_reduce`).
    """
    if None not in (ours, theirs) and ours != theirs:
        raise NotReplayable(
            f"rank {rank} takes another number of microbatches to this step than the others"
        )
