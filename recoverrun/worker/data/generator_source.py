"""Generators of the script that hand on what a data loader gives, such as

    def endless(loader):
        while True:
            yield from loader

A generator cannot be resumed as another rank: it would come back changed, and an exception that
passes through it ends it. So each item is noted with the draws that were made for it. While a
microbatch is re-executed as a lost rank, the same call is answered by that item with every draw in
it replaced by what the lost rank would have drawn, and its random streams move on as far as ours
did. A loader may be read ahead (accelerate's is, to know its last batch): then an item is one that
an earlier call has drawn. A generator without a loader below, which cuts random pieces from a text,
say, is resumed, once a proof has shown that this gives another rank's item, and leaves no trace.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from recoverrun.worker.data.batch_substitution import contains, pairs_for_rank, substituted
from recoverrun.worker.data.runtime import GeneratorRuntime
from recoverrun.worker.data.source import Draw
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams

AHEAD = 4
"""Draws that are kept until an item has them: so far a loader may be read ahead."""


UNTRIED = "{} was asked for its first item after the last proof: whose it is has not been shown"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GivenItem:
    """One item as the script got it; the streams stood `before` and `after` it was asked for.

    Reading them costs time, so it is not done for a generator whose first item was no loader's.
    """

    item: Any
    draws: list[Draw] | None  # those that may be in it; none are where no loader is below
    before: Streams | None
    after: Streams | None


class GeneratorSource:
    """Stands between the script and one of its generators. A `data.Source`."""

    ended = False

    def __init__(
        self, generator: Generator[Any, Any, Any], name: str, runtime: GeneratorRuntime, number: int
    ) -> None:
        self.number = number
        self.count = 0
        self._generator = generator
        self.name = name
        self._runtime = runtime
        self._taken: dict[int, GivenItem] = {}  # of the present step
        self._held = WeakValueDictionary[int, GivenItem]()  # by those who keep their draws
        self._positions: dict[int, int] = {}
        self._loads = False  # it has drawn from a loader
        self._ahead: list[Draw] = []  # in no item so far

    def __iter__(self) -> "GeneratorSource":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        rank = self._runtime.acting_rank
        if rank is None:
            return self._own(value)
        if self._runtime.fresh:
            return self._fresh(rank, value)
        index = self._positions.get(rank, self.count)
        self._positions[rank] = index + 1
        return self._as(rank, index, value)

    @property
    def asked(self) -> bool:
        """In the present transaction."""
        return bool(self._taken)

    def throw(self, *error: Any) -> Any:
        return self._generator.throw(*error)

    def close(self) -> None:
        self.ended = True
        self._generator.close()

    # --------------------------------------------------------------------------- normal work

    def _own(self, value: Any) -> Any:
        mark = self._runtime.drawn_so_far
        before = read_streams() if self._loads or not self.count else None
        self._runtime.asking += 1
        try:
            item = self._resumed(value)
        finally:
            self._runtime.asking -= 1
        draws = self._runtime.draws_since(mark)
        after = read_streams() if before is not None else None
        self._loads = self._loads or draws is None or bool(draws)
        taken = GivenItem(item, self._parts_of(item, draws), before, after)
        self._taken[self.count] = self._held[self.count] = taken
        self._runtime.fold(mark, Draw(self, self.count, item, taken))
        self.count += 1
        return item

    def _parts_of(self, item: Any, draws: list[Draw] | None) -> list[Draw] | None:
        """Of `draws` and of those before, the ones that are in `item`; all that may be where it is
        a copy. None if they are unknown.
        """
        waiting = [*self._ahead, *(draws or ())]
        self._ahead = []
        if draws is None or len(waiting) <= 1:
            return None if draws is None else waiting
        found = [one for one in waiting if contains(item, one.item)]
        left = [one for one in waiting if not any(one is other for other in found)]
        self._ahead = left[-AHEAD:]
        return found or waiting

    def _resumed(self, value: Any) -> Any:
        try:
            return self._generator.send(value)
        except StopIteration:
            self.ended = True
            raise

    # --------------------------------------------------------------------------- as a lost rank

    def _as(self, rank: int, index: int, value: Any) -> Any:
        """Item `index` as `rank` would have got it. No exception may pass the script's generator
        that holds us: what cannot be served spoils the re-execution instead.
        """
        taken = self._held.get(index)
        try:
            if taken is not None and not self._loads:
                if not self._runtime.trusts(self.name):
                    raise NotReplayable(UNTRIED.format(self.name))
                return self._resumed(value)
            return self._served(rank, taken)
        except NotReplayable as reason:
            self._runtime.spoil(str(reason))
        except StopIteration:
            self._runtime.spoil(f"rank {rank} has no more data where this rank has")
        return taken.item if taken is not None else None

    def _fresh(self, rank: int, value: Any) -> Any:
        """An item of other data. The generator is not asked where a loader below can be: it does
        more than to hand on, and what the script does between two of its items is not done here.
        """
        taken = self._taken[max(self._taken)] if self._taken else None
        if taken is not None and taken.draws:
            item = substituted(taken.item, pairs_for_rank(taken.item, taken.draws, rank))
            if item is not taken.item:
                return item
        return self._resumed(value)

    def _served(self, rank: int, taken: GivenItem | None) -> Any:
        if taken is None:
            raise NotReplayable(f"{self.name} is asked for more by another rank than by this one")
        if taken.draws is None:
            raise NotReplayable(f"{self.name} makes one item of too many")
        if taken.before is None or taken.after is None:
            raise NotReplayable(f"{self.name} gives data of a loader and others")
        moved = skip_ahead(read_streams(), taken.before, taken.after)
        if moved is None:
            raise NotReplayable(f"{self.name} draws random numbers of Python or numpy")
        item = substituted(taken.item, pairs_for_rank(taken.item, taken.draws, rank))
        if item is taken.item:
            raise NotReplayable(f"{self.name} makes something else of what its loader gives")
        if not self._runtime.looking_back:
            restore_streams(moved)
        return item

    def serve(self, rank: int, index: int) -> Any:
        fresh = self._runtime.fresh
        return self._fresh(rank, None) if fresh else self._as(rank, index, None)

    def seek(self, rank: int, index: int) -> None:
        self._positions[rank] = index

    def forget(self, rank: int) -> None:
        self._positions.pop(rank, None)

    # --------------------------------------------------------------------------- between steps

    def begin_step(self, floor: int) -> None:
        """What was taken before item `floor` belongs to a step that is over."""
        self._taken = {index: one for index, one in self._taken.items() if index >= floor}
