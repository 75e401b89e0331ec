"""The item of a loop, as another rank would have been given it."""

from typing import Any

from recoverrun.worker.data.batch_substitution import pairs_for_rank, substituted
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.microbatches import Top


class LoopItems:
    """The items of all loops that are executed again."""

    def __init__(self) -> None:
        self.fed: dict[str, bool] = {}  # by region: an item is what some iterator gave
        self.looking_back = False  # what is served was drawn before the region

    def of(self, top: Top, rank: int, *, proves: bool, fresh: bool) -> Any:
        """The loop's item with what was drawn for it replaced by what `rank` would have drawn."""
        drawn = pairs_for_rank(top.item, top.draws, rank)
        before = read_streams()
        self.looking_back = True
        try:
            drawn += pairs_for_rank(top.item, top.ahead, rank)
        finally:
            self.looking_back = False
        if read_streams() != before and not fresh:
            raise NotReplayable("data that are fetched ahead draw random numbers as they are read")
        if proves:
            self.fed[top.loop.id] = bool(drawn)
        elif self.fed.get(top.loop.id) and not drawn and not fresh:
            raise NotReplayable("the data of a microbatch were drawn too long before it began")
        return substituted(top.item, drawn)
