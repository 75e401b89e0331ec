"""`itertools.cycle` over the script's data, as a data source.

`cycle` keeps the items of the first pass and returns them again, without asking the loader below.
Re-executed code would move it on. Its stand-in also keeps the draws behind every item, and gives
another rank that rank's items.
"""

from collections.abc import Iterator
from typing import Any

from recoverrun.worker.data.batch_substitution import substituted
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.runtime import GeneratorRuntime
from recoverrun.worker.data.source import Draw, RankAware
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams, restore_streams


class CycleSource(RankAware):
    """A `Source` that stands in for `itertools.cycle(items)`."""

    ended = False

    def __init__(self, items: Iterator[Any], runtime: GeneratorRuntime, number: int) -> None:
        self.number = number
        self.count = 0
        self._items: Iterator[Any] | None = items
        self._runtime = runtime
        self._saved: list[tuple[Any, list[Draw] | None]] = []
        self._positions: dict[int, int] = {}
        self._draws_numbers = False

    def __iter__(self) -> "CycleSource":
        return self

    def __next__(self) -> Any:
        rank = self._runtime.acting_rank
        if rank is not None:
            index = self._positions.get(rank, self.count)
            self._positions[rank] = index + 1
            return self.serve(rank, index)
        mark = self._runtime.drawn_so_far
        item = self._next_own(mark)
        self._runtime.fold(mark, Draw(self, self.count, item))
        self.count += 1
        return item

    def _next_own(self, mark: int) -> Any:
        if self._items is not None:
            try:
                before = read_streams()
                item = next(self._items)
            except StopIteration:
                self._keep_sources()
                self._items = None
                if not self._saved:
                    raise
            else:
                if self._saved:  # a sampler may take its seed with the first
                    self._draws_numbers |= read_streams() != before
                self._saved.append((item, self._runtime.draws_since(mark)))
                return item
        if not self._saved:
            raise StopIteration
        return self._saved[self.count % len(self._saved)][0]

    def _keep_sources(self) -> None:
        """Let iterators that are exhausted go on serving other ranks."""
        for _, draws in self._saved:
            for draw in draws or ():
                if isinstance(draw.source, LoaderIterator):
                    draw.source.ended = False

    def serve(self, rank: int, index: int) -> Any:
        """Return item `index` as `rank` would have got it. Raises NotReplayable."""
        if self._runtime.fresh:
            index = max(0, self.count - 1)  # its draws give other data each time
        again = index // len(self._saved) if self._saved else 0
        if not self._saved or (again and self._items is not None):
            raise NotReplayable("another rank takes more items from itertools.cycle than this one")
        item, draws = self._saved[index % len(self._saved)]
        if draws is None:
            raise NotReplayable("a cycle makes one item of too many")
        if again and self._draws_numbers:
            raise NotReplayable("a cycle over data that draw random numbers as they are read")
        before = read_streams()
        try:
            drawn = [(draw.item, draw.source.serve(rank, draw.index)) for draw in draws]
        except StopIteration:
            raise NotReplayable(f"rank {rank} has run out of data, and this rank has not") from None
        finally:
            if again:
                restore_streams(before)  # the script's own item was only handed out again
        theirs = substituted(item, drawn)
        if draws and theirs is item:
            raise NotReplayable("a cycle makes something else of what its loader gives")
        return theirs

    def seek(self, rank: int, index: int) -> None:
        self._positions[rank] = index

    def forget(self, rank: int) -> None:
        self._positions.pop(rank, None)
        for draw in {id(d.source): d for _, draws in self._saved for d in draws or ()}.values():
            draw.source.forget(rank)

    def begin_step(self, floor: int) -> None:
        """Keep all that was drawn: it comes again."""
