"""Data iterators that also serve the items of another rank.

The iterator of every `DataLoader` is wrapped. In normal work it hands out what the loader yields,
and counts. While a microbatch is re-executed as a lost rank, the same call is answered by a clone
of the loader whose samplers carry that rank. The clone starts where the lost rank created its own
iterator and is skipped forward by index: no datum is read on the way (docs/scripts.md, "Data").

A position is an absolute count since the iterator was created. All ranks run the same code, so a
lost rank is at the same position as this rank at the same microbatch.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ft_collectives.communicators.errors import Superseded
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_opening import LoaderOpening, RankIterator
from recoverrun.worker.data.loader_workers import checked, end_workers, next_item
from recoverrun.worker.data.runtime import DataRuntime
from recoverrun.worker.data.source import RankAware
from recoverrun.worker.data.worker_item import GeneratorTrace
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import Streams, read_streams

PASSING_S = 60.0
"""How long others may wait while what a lost rank has read of an iterable data set is read again.
If it would take longer, going on with other samples is the better answer."""

LOOKED_AT_S = 1.0
"""After this time the speed of reading is known well enough."""

RAISED = "the data set {}, read as rank {}, raised {}"


@dataclass(slots=True, eq=False, weakref_slot=True)
class LoaderIterator(RankAware):
    """The iterator over `loader`, the `number`th of this process."""

    loader: "DataLoader[Any]"
    make: Callable[[Any], Iterator[Any]]
    runtime: DataRuntime
    number: int
    late: "Callable[[LoaderIterator], Iterator[Any]] | None" = None
    """Begins it at the first item that is really read; None: it is begun as it is made."""
    opening: LoaderOpening = field(init=False)
    own: Iterator[Any] = field(init=False)
    count: int = 0
    iterators: dict[int, RankIterator] = field(default_factory=dict)  # of other ranks
    positions: dict[int, int] = field(default_factory=dict)
    traces: dict[int, GeneratorTrace] = field(default_factory=dict)  # of each rank the last one
    extra: Iterator[Any] | None = None
    ended: bool = False
    by_rows: bool = True  # no item has drawn random numbers in a worker process
    thread: int = 0  # that has asked for the newest item; 0: none was
    floor: int = 0  # items before this one belong to steps that are over
    moved: tuple[Streams, Streams] | None = None
    """Before and after the last item that a generator has asked for, and what made the iterator."""

    def __post_init__(self) -> None:
        self.opening = LoaderOpening(self.loader, self.make, self.runtime, self.number)
        with self._reads():
            self.own = self.opening.begin() if self.late is None else self.late(self)

    @property
    def origin(self) -> Origin:
        return self.opening.origin

    def __iter__(self) -> "LoaderIterator":
        return self

    def __len__(self) -> int:
        return len(self.own)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "opening"):  # not yet made: a real attribute error, no recursion
            raise AttributeError(name)
        return getattr(self.own, name)

    def __next__(self) -> Any:
        rank = self.runtime.acting_rank
        if self.runtime.fresh:
            return self._fresh()
        if rank is not None:
            index = self.positions.get(rank, self.count)
            self.positions[rank] = index + 1
            return self.serve(rank, index)
        if not self.count and self.opening.started is None:
            self.opening.first_item()
        before = self._before() if self.runtime.asking else None
        self.thread = threading.get_ident()
        try:
            with self._reads():
                item = next(self.own)
        except StopIteration:
            self.ended = True
            raise
        self.moved = None if before is None else (before, read_streams())
        self.runtime.drawn(self, self.count, item)
        self.count += 1
        return item

    def _reads(self) -> AbstractContextManager[None]:
        """An iterable data set is read here by code of its own: another rank's copy makes what that
        makes.
        """
        return self.runtime.reading() if self.opening.is_iterable else nullcontext()

    def _before(self) -> Streams:
        """The streams before an item, and before the iterator if it has just been made."""
        present, within = read_streams(), self.opening.within
        made_now = not self.count and within is not None and within[1] == present
        return within[0] if made_now and within is not None else present

    def _fresh(self) -> Any:
        """Return one more item than the script asks for, from an iterator beside its own.

        Its own would end sooner than those of ranks that make up less, and ranks must leave their
        loops together. So the data are those of another pass, in another order if it is shuffled.
        """
        for _ in range(2):
            if self.extra is None:
                self.extra = self.opening.extra()
            try:
                return next_item(self.extra, self.loader.dataset)
            except StopIteration:
                self.extra = None
        raise NotReplayable(f"the data set of {type(self.loader).__name__} is empty")

    def seek(self, rank: int, index: int) -> None:
        self.positions[rank] = index

    def forget(self, rank: int) -> None:
        self._end(rank)
        self.positions.pop(rank, None)

    def _end(self, rank: int) -> None:
        """Give up the iterator of another rank, with its worker processes."""
        if (theirs := self.iterators.pop(rank, None)) is not None:
            end_workers(theirs.items)

    def begin_step(self, floor: int) -> None:
        """Positions are absolute. A step may have drawn its items before it begins."""
        for theirs in self.iterators.values():
            theirs.kept = {
                index: item for index, item in theirs.kept.items() if index >= self.floor
            }
        self.floor = floor

    def serve(self, rank: int, index: int) -> Any:
        """Return item `index` as `rank` would draw it.

        Raises NotReplayable, or StopIteration at the end. A data set may have this rank's rows
        only.
        """
        if self.runtime.fresh:
            return self._fresh()
        try:
            return self._serve(rank, index)
        except (NotReplayable, StopIteration, Superseded):
            raise
        except Exception as error:  # protects a run from what its data set says to others' rows
            self._end(rank)
            data = type(self.loader.dataset).__name__
            raise NotReplayable(RAISED.format(data, rank, _words(error))) from error

    def _serve(self, rank: int, index: int) -> Any:
        with self._speaking_as(rank):
            theirs = self._iterator_at(rank, index)
        if not index:
            self.opening.draw_order(theirs)
        if index in theirs.kept:
            return copy.deepcopy(theirs.kept[index])  # the script may write into what it gets
        theirs.at += 1
        with self._speaking_as(rank):
            return next(theirs.items)

    def _speaking_as(self, rank: int) -> AbstractContextManager[None]:
        """An iterable data set may ask for its rank at any time; one that is given row numbers,
        only as its worker processes begin.
        """
        asking = self.opening.is_iterable or self.loader.num_workers
        return self.runtime.speaking_as(rank) if asking else nullcontext()

    def _iterator_at(self, rank: int, index: int) -> RankIterator:
        """Return `rank`'s iterator right before item `index`, or with it if worker processes give
        it.
        """
        theirs = self.iterators.get(rank)
        if theirs is not None and index in theirs.kept:
            return theirs
        if theirs is None or theirs.at > index:
            self._end(rank)
            theirs = self.opening.as_rank(rank, index, by_rows=self.by_rows)
            self.iterators[rank] = theirs
        self.go_up_to(theirs, index)
        if not self.loader.num_workers:
            return theirs
        read = checked(self._next(theirs), self.loader.dataset)
        theirs.at += 1
        if read.drew and self.by_rows and not self.opening.is_iterable:
            self.by_rows = False
            for other in tuple(self.iterators):
                self._end(other)
            return self._iterator_at(rank, index)
        self.runtime.believe(self.loader, read)
        self.traces[rank] = GeneratorTrace.of(index, read, by_rows=self.by_rows)
        theirs.kept[index] = read.item
        return theirs

    def retrace(self, index: int) -> GeneratorTrace:
        """Return what this rank's worker processes left at item `index`, from others begun alike.

        Raises NotReplayable, or what the data set does.
        """
        rank = self.runtime.own_rank
        try:
            with self._speaking_as(rank):
                self._iterator_at(rank, index)
        finally:
            self.forget(rank)
        return self.traces.pop(rank)

    def go_up_to(self, theirs: RankIterator, index: int, *, draws: bool = False) -> None:
        """Go up to item `index`. Raises NotReplayable if that would take too long, or if reading
        draws random numbers and it is not said that it may.
        """
        first, begun = theirs.at, time.monotonic()
        while theirs.at < index:
            self._skip(theirs, draws)
            theirs.at += 1
            took = time.monotonic() - begun
            expected = took * (index - first) / (theirs.at - first)
            if took > LOOKED_AT_S and expected > PASSING_S:
                raise NotReplayable(
                    f"to read {index - first} items of {type(self.loader.dataset).__name__} again "
                    f"would take about {expected:.0f} s"
                )

    def _next(self, theirs: RankIterator) -> Any:
        return next_item(theirs.items, self.loader.dataset)

    def _skip(self, theirs: RankIterator, draws: bool) -> None:
        """Pass one item; an in-process loader over a map-style data set needs only its indices."""
        items, by_row = theirs.items, not self.opening.is_iterable
        if isinstance(items, _BaseDataLoaderIter) and by_row and not items._num_workers:
            items._next_index()
            return
        before = read_streams()
        self._next(theirs)
        if not draws and read_streams() != before:
            raise NotReplayable("an iterable data set draws random numbers as it is read")


def _words(error: Exception) -> str:
    """One line. That of a worker process has its traceback, which ends with its own words."""
    lines = str(error).strip().splitlines()
    return lines[-1] if len(lines) > 1 else repr(error)
