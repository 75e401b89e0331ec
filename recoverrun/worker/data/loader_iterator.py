"""Data iterators that can also serve the position of another slot.

The iterator of every `DataLoader` is wrapped. In normal work it hands out what the loader yields
and counts. While a microbatch is re-executed as a lost rank, the same call is answered by a clone
of the loader whose samplers carry that rank, started from where the lost rank had created its own
iterator and skipped forward by index: no datum is read on the way (docs/injection.md, "Data").

A position is an absolute count since the iterator was created. All ranks run the same code, so a
lost rank stands where this rank stood at the same microbatch.
"""

import copy
import itertools
import time
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ft_collectives.communicators.errors import Superseded
from recoverrun.worker.data.iterator_origin import UNTOLD, Origin
from recoverrun.worker.data.loader_clone import (
    Kept,
    Ranks,
    clone_for,
    has_shared,
    in_process,
    own_samplers,
    samplers_of,
    staffed,
)
from recoverrun.worker.data.loader_state import Point
from recoverrun.worker.data.loader_workers import (
    Read,
    Trace,
    indices_from,
    next_of,
    opened,
    staffed_for,
    watched,
)
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from rendezvous.protocol.layout import Layout

SPARE_EPOCHS = 1_000_003
"""Added to a sampler's epoch for data beside the script's own: no script gets that far."""

PASSING_S = 60.0
"""So long the others may wait while what a lost rank has read of a stream is read once more;
longer than that, and going on with other samples is the better answer."""

LOOKED_AT_S = 1.0
"""After that it is seen how fast it goes."""

RAISED = "the data set {}, read as rank {}, raised {}"

RESUMED = "the loader's worker processes go on from a state that was loaded"

UNSEEDED = "the data set {} depends on the seeds of worker processes, which cannot be told"


class Impersonation(Protocol):
    """What an iterator asks the runtime at every draw."""

    @property
    def acting_rank(self) -> int | None:
        """The lost rank being impersonated, or None in normal work."""

    @property
    def own_rank(self) -> int: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def fresh(self) -> bool:
        """One more microbatch is computed on our own next data."""

    asking: int
    """How many generators of the script are at work, one within another, to give an item."""

    @property
    def looking_back(self) -> bool:
        """The item was drawn before the code that is executed again."""

    def created_at(self, number: int, rank: int) -> Origin | None:
        """Where `rank` stood when it created its iterator `number`, if it said so."""

    def drawn(self, source: "Source", index: int, item: Any) -> None:
        """Note a draw of normal work."""

    @property
    def seen(self) -> Container[int]:
        """Identities of objects whose attributes, and of generators whose states, are put where a
        lost rank's were while its microbatch is executed, and then back.
        """

    def believe(self, loader: "DataLoader[Any]", read: Read) -> None:
        """Raises NotReplayable if another rank's workers may have drawn other numbers for it."""

    def speaking_as(self, rank: int) -> AbstractContextManager[None]:
        """In here, and in processes that begin here, who asks for its rank is told `rank`."""


class Source(Protocol):
    """Anything whose items depend on the rank: a loader's iterator, a generator of the script."""

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    def serve(self, rank: int, index: int) -> Any:
        """Item `index` as `rank` would have drawn it."""

    def seek(self, rank: int, index: int) -> None:
        """The next draw as `rank` is number `index`."""

    def forget(self, rank: int) -> None:
        """Drop what is kept for `rank`."""

    def begin_step(self, floor: int) -> None:
        """What was drawn before item `floor` belongs to a step that is over."""


@dataclass(slots=True)
class Twin:
    """The iterator of another rank's clone, and how many items it has passed.

    What worker processes gave in this step and the one before is kept: to begin them again is dear.
    """

    items: Iterator[Any]
    order: tuple[Streams, Streams]  # before and after the order of data was drawn
    at: int = 0
    kept: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False, weakref_slot=True)
class LoaderIterator:
    """The iterator of `loader`, number `number` of this process.

    Two moments matter for the order of its data: when it is `created` (a seed is drawn, and worker
    processes begin to fetch), and, without workers, when its first item is asked for (`started`).
    """

    loader: "DataLoader[Any]"
    make: Callable[[Any], Iterator[Any]]
    runtime: Impersonation
    number: int
    own: Iterator[Any] = field(init=False)
    created: Point = field(init=False)
    origin: Origin = field(init=False)
    within: tuple[Streams, Streams] | None = None  # before and after, if a generator made it
    started: Point | None = None
    renewed: bool = False  # persistent workers: their iterator begins anew and draws no seed
    count: int = 0
    twins: dict[int, Twin] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    traces: dict[int, Trace] = field(default_factory=dict)  # of each rank the last one
    spare: Iterator[Any] | None = None
    spares: int = 0
    ended: bool = False
    by_rows: bool = True  # no item has drawn random numbers in a worker process
    kept: Kept | None = None  # a stream that is read in this process, as it stood
    floor: int = 0  # items before this one belong to steps that are over

    def __post_init__(self) -> None:
        self.created = Point.of(self.loader)
        self.origin = Origin.of(self.loader, self.created.streams, self.created.packed)
        state = vars(self.loader)
        self.renewed = bool(state.get("persistent_workers") and state.get("_iterator"))
        if self._streams and not self.loader.num_workers:
            self.kept = Kept(self.loader.dataset)
        self.own = self.make(self.loader)
        if self.runtime.asking:
            self.within = self.created.streams, read_streams()

    def __iter__(self) -> "LoaderIterator":
        return self

    def __len__(self) -> int:
        return len(self.own)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in (
            "own",
            "created",
            "origin",
        ):  # not yet made: a real attribute error, no recursion
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
        if not self.count and not self.loader.num_workers:
            self.started = Point.of(self.loader)
        try:
            item = next(self.own)
        except StopIteration:
            self.ended = True
            raise
        self.runtime.drawn(self, self.count, item)
        self.count += 1
        return item

    def _fresh(self) -> Any:
        """One more item than the script asks for, from an iterator beside its own.

        Its own would end sooner than those of ranks that make up less, and ranks must leave their
        loops together. So the data are those of another pass, in another order if it is shuffled.
        """
        for _ in range(2):
            if self.spare is None:
                self.spare = self._begin_spare()
            try:
                return next(self.spare)
            except StopIteration:
                self.spare = None
        raise NotReplayable(f"the data set of {type(self.loader).__name__} is empty")

    def _begin_spare(self) -> Iterator[Any]:
        self.spares += 1
        clone = in_process(self.loader, own_samplers(self.loader, None))
        data = self.loader.dataset
        if not (self._streams and has_shared(data)):  # it may have a place for each who begins
            clone = staffed(clone, self.loader)
        vars(clone)["generator"] = None
        for sampler in samplers_of(clone):
            if isinstance(getattr(sampler, "generator", None), torch.Generator):
                seed = int(torch.empty((), dtype=torch.int64).random_())
                sampler.generator = torch.Generator().manual_seed(seed)
            if type(getattr(sampler, "epoch", None)) is int:
                sampler.epoch += self.spares * SPARE_EPOCHS
        return self.make(clone)

    def seek(self, rank: int, index: int) -> None:
        self.positions[rank] = index

    def forget(self, rank: int) -> None:
        self.twins.pop(rank, None)
        self.positions.pop(rank, None)

    def begin_step(self, floor: int) -> None:
        """Positions are absolute. A step may have drawn its items before it begins."""
        for twin in self.twins.values():
            twin.kept = {index: item for index, item in twin.kept.items() if index >= self.floor}
        self.floor = floor

    def serve(self, rank: int, index: int) -> Any:
        """Item `index` as `rank` would draw it. Raises NotReplayable, or StopIteration at the end.

        A data set may have this rank's rows alone.
        """
        if self.runtime.fresh:
            return self._fresh()
        try:
            return self._serve(rank, index)
        except (NotReplayable, StopIteration, Superseded):
            raise
        except Exception as error:  # protects a run from what its data set says to others' rows
            data = type(self.loader.dataset).__name__
            raise NotReplayable(RAISED.format(data, rank, _words(error))) from error

    def _serve(self, rank: int, index: int) -> Any:
        with self._speaking_as(rank):
            twin = self._twin(rank, index)
        if not index:
            self._pay(twin)
        if index in twin.kept:
            return copy.deepcopy(twin.kept[index])  # the script may write into what it gets
        twin.at += 1
        with self._speaking_as(rank):
            return next(twin.items)

    @property
    def _streams(self) -> bool:
        return isinstance(self.loader.dataset, IterableDataset)

    def _speaking_as(self, rank: int) -> AbstractContextManager[None]:
        """A data set that is a stream may ask for its rank; what is given row numbers, only as its
        worker processes begin.
        """
        asking = self._streams or self.loader.num_workers
        return self.runtime.speaking_as(rank) if asking else nullcontext()

    def _twin(self, rank: int, index: int) -> Twin:
        """The iterator of `rank`'s clone, right before item `index`, or with it if worker processes
        give it.
        """
        twin = self.twins.get(rank)
        if twin is not None and index in twin.kept:
            return twin
        if twin is None or twin.at > index:
            twin = self.twins[rank] = self._begin(rank, index)
        self._pass(twin, index)
        if not self.loader.num_workers:
            return twin
        read = opened(self._next(twin), self.loader.dataset)
        twin.at += 1
        if read.drew and self.by_rows and not self._streams:
            self.by_rows = False
            self.twins.clear()
            return self._twin(rank, index)
        self.runtime.believe(self.loader, read)
        self.traces[rank] = Trace.of(index, read)
        twin.kept[index] = read.item
        return twin

    def retrace(self, index: int) -> Trace:
        """What our own worker processes left at item `index`, from others that are begun like them.

        Raises NotReplayable, or what the data set does.
        """
        rank = self.runtime.own_rank
        try:
            with self._speaking_as(rank):
                self._twin(rank, index)
        finally:
            self.forget(rank)
        return self.traces.pop(rank)

    def _pass(self, twin: Twin, index: int) -> None:
        """Up to item `index`. Raises NotReplayable if that would take too long."""
        first, begun = twin.at, time.monotonic()
        while twin.at < index:
            self._skip(twin)
            twin.at += 1
            took = time.monotonic() - begun
            expected = took * (index - first) / (twin.at - first)
            if took > LOOKED_AT_S and expected > PASSING_S:
                raise NotReplayable(
                    f"to read {index - first} items of {type(self.loader.dataset).__name__} again "
                    f"would take about {expected:.0f} s"
                )

    def _next(self, twin: Twin) -> Any:
        return next_of(twin.items, self.loader.dataset)

    def _skip(self, twin: Twin) -> None:
        """Pass one item; an in-process loader over a map-style data set needs only its indices."""
        items = twin.items
        if isinstance(items, _BaseDataLoaderIter) and not self._streams and not items._num_workers:
            items._next_index()
            return
        before = read_streams()
        self._next(twin)
        if read_streams() != before:
            raise NotReplayable("an iterable data set draws random numbers as it is read")

    def _pay(self, twin: Twin) -> None:
        """Who is first asked for an item, and has no workers, draws the order from the streams of
        that moment: let them move on as far. A generator that makes an iterator and asks it draws
        its seed in that moment, too.
        """
        if self.runtime.acting_rank is None or self.runtime.looking_back:
            return
        order = None if self.started is None else twin.order
        for before, after in filter(None, (self.within, order)):
            moved = skip_ahead(read_streams(), before, after)
            if moved is None:
                raise NotReplayable("a sampler draws random numbers of Python or numpy")
            restore_streams(moved)

    def _begin(self, rank: int, index: int) -> Twin:
        """A fresh iterator of `rank`'s clone, created where that rank created its own; it may begin
        anywhere up to item `index`.

        If that rank was lost before this iterator existed, its adopted stream pays for the numbers
        that creating an iterator draws, as the rank itself would have.
        """
        runtime = self.runtime
        own = rank == runtime.own_rank
        told = self.origin if own else runtime.created_at(self.number, rank)
        carried = {}
        if told is not None:
            told.require_places(self.origin, self.runtime.own_rank)
            carried = told.against(self.origin)
        ranks = Ranks(runtime.own_rank, rank, runtime.layout, carried)
        if self.created.resumed is not None and self.loader.num_workers:
            raise NotReplayable(RESUMED)
        clone = clone_for(self.loader, ranks, self.kept, runtime.seen)
        created, started, present = self.created, self.started, read_streams()
        if told is not None:
            told.give_cuts(clone)
            theirs = told.require_generators()
            created = self.created.holding(theirs)
            if self.started is not None:
                started = self.started.after(self.created, theirs)
        at = theirs_at = told.streams if told is not None else None
        seeded = self.loader.num_workers and (self._streams or not self.by_rows)
        if seeded and (at is None or self.renewed):
            raise NotReplayable(UNSEEDED.format(type(clone.dataset).__name__))
        if self._streams and self.loader.num_workers:
            clone = watched(clone)
        created.give(clone)
        if at is not None:
            restore_streams(at)
        try:
            items = self.make(clone)
            if self.renewed:
                created.give(clone)
                restore_streams(at or present)
            if started is not None:
                started.give(clone)
                if at is not None:
                    at = skip_ahead(at, created.streams, started.streams)
                    restore_streams(at or present)
            begun = read_streams()
            if isinstance(items, _BaseDataLoaderIter):
                _begin_order(items)
            order = begun, read_streams()
            first = 0
            if self.loader.num_workers and not self._streams:
                restore_streams(theirs_at or present)
                first, items = self._staffed(clone, items, created, index)
                restore_streams(order[1])
        finally:
            if told is not None:
                restore_streams(present)
        if told is not None and at is None and order[0] != order[1]:
            raise NotReplayable(UNTOLD.format("where the random numbers stand that order its data"))
        return Twin(items, order, first)

    def _staffed(
        self, clone: "DataLoader[Any]", items: Any, created: Point, index: int
    ) -> tuple[int, Iterator[Any]]:
        """Worker processes that give what `items` would, and from which item on.

        Made where the rank made its own, so that they get the same seeds.
        """
        workers = self.loader.num_workers
        first, indices = indices_from(items._sampler_iter, index, workers, by_rows=self.by_rows)
        made = staffed_for(self.loader, clone, indices, created.loader_generator())
        return first, self.make(made)


def _begin_order(items: "_BaseDataLoaderIter") -> None:
    """Draw the first index of `items` where the rank did: a sampler takes its seed there."""
    indices = items._sampler_iter
    first = list(itertools.islice(indices, 1))
    items._sampler_iter = itertools.chain(first, indices)


def _words(error: Exception) -> str:
    """One line. That of a worker process has its traceback, which ends with its own words."""
    lines = str(error).strip().splitlines()
    return lines[-1] if len(lines) > 1 else repr(error)
