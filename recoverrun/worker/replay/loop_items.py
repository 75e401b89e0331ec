"""The item of a loop, as another rank would have been given it."""

from typing import Any

from recoverrun.worker.data.batch_substitution import pairs_for_rank, substituted
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams
from recoverrun.worker.tracking.microbatches import Top

DRAWN, TOLD = "drawn", "told"  # from a source of data; as values in which ranks differ

ANEW = "the loop at {} goes through data that were made after ranks told each other of theirs"


class LoopItems:
    """The items of all loops that are executed again."""

    def __init__(self) -> None:
        self.fed: dict[str, str] = {}  # by region: the origin of its item in a proof, or ""
        self.looking_back = False  # what is served was drawn before the region

    def of(self, top: Top, rank: int, *, told: bool, proves: bool, fresh: bool) -> Any:
        """The loop's item with what was drawn for it replaced by what `rank` would have drawn.

        `told`: ranks have told each other what is in it.
        """
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
            self.fed[top.loop.id] = DRAWN if drawn else TOLD if told else ""
        elif not drawn and not fresh:
            self._require(top.loop.id, told)
        return substituted(top.item, drawn)

    def _require(self, region: str, told: bool) -> None:
        """An item is of the origin by which a proof has shown whose it is. Raises NotReplayable."""
        origin = self.fed.get(region)
        if origin == DRAWN:
            raise NotReplayable("the data of a microbatch were drawn too long before it began")
        if origin == TOLD and not told:
            raise NotReplayable(ANEW.format(region))
