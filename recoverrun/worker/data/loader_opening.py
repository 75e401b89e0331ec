"""The beginning of another rank's iterator over a data loader.

Two moments decide the order of a loader's data: when its iterator is created (a seed is drawn, and
worker processes begin to fetch) and, without workers, when its first item is asked for (the sampler
draws its order). What this process noted in these moments, together with the origin that
another rank sent, is enough to begin an iterator that gives that rank's items.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.iterator_origin import UNKNOWN, Origin
from recoverrun.worker.data.loader_clone import (
    clone_for,
    keeps_workers,
    with_workers,
    without_workers,
)
from recoverrun.worker.data.loader_keepers import held_by, keepers_of
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.loader_workers import (
    indices_from,
    unreported,
    watched,
    with_workers_in_order,
)
from recoverrun.worker.data.rank_substitution import (
    RankPair,
    copied_samplers,
    shares_with_processes,
)
from recoverrun.worker.data.runtime import DataRuntime
from recoverrun.worker.data.samplers import samplers_of
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.skip_ahead import skip_ahead
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams

SPARE_EPOCHS = 1_000_003
"""Added to a sampler's epoch for extra data: no script gets that far."""

RESUMED = "the loader's worker processes go on from a state that was loaded"

UNSEEDED = "the data set {} depends on the seeds of worker processes, which are unknown"


@dataclass(slots=True)
class RankIterator:
    """The iterator of another rank's clone, and how many items it has passed.

    What worker processes gave in this step and the one before is kept: to begin them again is
    expensive.
    """

    items: Iterator[Any]
    order: tuple[Streams, Streams]  # before and after the order of data was drawn
    at: int = 0
    kept: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class LoaderOpening:
    """The state with which this process began its iterator number `number` over `loader`."""

    loader: "DataLoader[Any]"
    make: Callable[[Any], Iterator[Any]]
    runtime: DataRuntime
    number: int
    created: LoaderState = field(init=False)
    origin: Origin = field(init=False)
    found: list[dict[str, Any]] = field(init=False)  # what its keepers held
    renewed: bool = False  # persistent workers: their iterator begins anew and draws no seed
    snapshot: IterableSnapshot | None = None  # of an iterable data set that is read in this process
    started: LoaderState | None = None  # as the first item was asked for, without workers
    within: tuple[Streams, Streams] | None = None  # before and after, if a generator made it
    beside: "DataLoader[Any] | None" = None  # the copy that gives extra data

    def __post_init__(self) -> None:
        self.created = LoaderState.of(self.loader)
        self.origin = Origin.of(self.loader, self.created.streams, self.created.generator_states)
        self.renewed = keeps_workers(self.loader)
        self.found = [held_by(one) for one in keepers_of(self.loader)]
        if self.is_iterable and not self.loader.num_workers:
            self.snapshot = IterableSnapshot(self.loader.dataset)

    @property
    def is_iterable(self) -> bool:
        """True if the data set is read in its own order, not by row numbers."""
        return isinstance(self.loader.dataset, IterableDataset)

    def begin(self) -> Iterator[Any]:
        """Return the script's own iterator."""
        items = self.make(self.loader)
        if self.runtime.asking:
            self.within = self.created.streams, read_streams()
        return items

    def first_item(self) -> None:
        """The script asks for its first item."""
        if not self.loader.num_workers:
            self.started = LoaderState.of(self.loader)

    def extra(self) -> Iterator[Any]:
        """Return an iterator over another pass of the data, beside the script's own passes.

        All are over one copy of the loader: samplers that hold their place begin anew only after
        the end of a pass, and the script's own may stand there.
        """
        if self.beside is None:
            self.beside = self._beside()
        for sampler in samplers_of(self.beside):
            if type(getattr(sampler, "epoch", None)) is int:
                sampler.epoch += SPARE_EPOCHS
        return unreported(self.make(self.beside))

    def _beside(self) -> "DataLoader[Any]":
        clone = without_workers(self.loader, copied_samplers(self.loader, None))
        data = self.loader.dataset
        if not (
            self.is_iterable and shares_with_processes(data)
        ):  # it may have a place for each who begins
            clone = with_workers(clone, self.loader)
        vars(clone)["generator"] = None
        for sampler in samplers_of(clone):
            if isinstance(getattr(sampler, "generator", None), torch.Generator):
                seed = int(torch.empty((), dtype=torch.int64).random_())
                sampler.generator = torch.Generator().manual_seed(seed)
        return clone

    def draw_order(self, theirs: RankIterator) -> None:
        """Move the streams on by what the first item of `theirs` draws beside the item itself.

        Without workers, whoever asks for the first item draws the order of data from the streams of
        that moment. A generator that creates an iterator and asks it draws its seed then, too.
        """
        if self.runtime.acting_rank is None or self.runtime.looking_back:
            return
        order = None if self.started is None else theirs.order
        for before, moved_from in filter(None, (self.within, order)):
            moved = skip_ahead(read_streams(), before, moved_from)
            if moved is None:
                raise NotReplayable("a sampler draws random numbers of Python or numpy")
            restore_streams(moved)

    def as_rank(self, rank: int, index: int, *, by_rows: bool) -> RankIterator:
        """Begin an iterator of `rank`'s clone where that rank created its own.

        It may begin anywhere up to item `index`. If the rank was lost before this iterator existed,
        its present stream yields the numbers that creating an iterator draws, as it would have for
        the rank itself.
        """
        runtime = self.runtime
        origin = self.origin if rank == runtime.own_rank else runtime.created_at(self.number, rank)
        clone = self._clone(rank, origin)
        created, started, present = self.created, self.started, read_streams()
        if origin is not None:
            origin.apply_rows(clone)
            theirs = origin.require_generators()
            created = self.created.with_generators(theirs)
            if self.started is not None:
                started = self.started.moved_from(self.created, theirs)
        at = theirs_at = origin.streams if origin is not None else None
        seeded = self.loader.num_workers and (self.is_iterable or not by_rows)
        if seeded and (at is None or self.renewed):
            raise NotReplayable(UNSEEDED.format(type(clone.dataset).__name__))
        if self.is_iterable and self.loader.num_workers:
            clone = watched(clone)
        created.apply_to(clone)
        if at is not None:
            restore_streams(at)
        try:
            items = self.make(clone)
            if self.renewed:
                created.apply_to(clone)
                restore_streams(at or present)
            if started is not None:
                started.apply_to(clone)
                if at is not None:
                    at = skip_ahead(at, created.streams, started.streams)
                    restore_streams(at or present)
            begun = read_streams()
            if isinstance(items, _BaseDataLoaderIter):
                begin_order(items)
            order = begun, read_streams()
            first = 0
            if self.loader.num_workers and not self.is_iterable:
                restore_streams(theirs_at or present)
                first, items = self._with_workers(clone, items, created, index, by_rows)
                restore_streams(order[1])
        finally:
            if origin is not None:
                restore_streams(present)
        if origin is not None and at is None and order[0] != order[1]:
            raise NotReplayable(
                UNKNOWN.format("where the random numbers stand that order its data")
            )
        return RankIterator(unreported(items), order, first)

    def _clone(self, rank: int, origin: Origin | None) -> "DataLoader[Any]":
        runtime, carried = self.runtime, {}
        if origin is not None:
            origin.require_rank_places(self.origin, runtime.own_rank)
            carried = origin.places_for(self.origin)
        ranks = RankPair(runtime.own_rank, rank, runtime.layout, carried)
        if self.created.resumed is not None and self.loader.num_workers:
            raise NotReplayable(RESUMED)
        theirs = runtime.theirs(self.loader.dataset, self.snapshot)
        return clone_for(self.loader, ranks, self.snapshot, runtime.seen, theirs)

    def _with_workers(
        self, clone: "DataLoader[Any]", items: Any, created: LoaderState, index: int, by_rows: bool
    ) -> tuple[int, Iterator[Any]]:
        """Return worker processes that give what `items` would, and from which item on.

        They are made where the rank made its own, so that they get the same seeds.
        """
        workers = self.loader.num_workers
        first, indices = indices_from(items._sampler_iter, index, workers, by_rows=by_rows)
        made = with_workers_in_order(self.loader, clone, indices, created.loader_generator())
        return first, self.make(made)


class BegunOrder:
    """An order of data of which one index was drawn."""

    def __init__(self, rest: Iterator[Any]) -> None:
        self.rest = rest
        self._first = list(itertools.islice(rest, 1))

    def __iter__(self) -> "BegunOrder":
        return self

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self.rest)


def begin_order(items: "_BaseDataLoaderIter") -> None:
    """Draw the first index of `items` where the rank did: a sampler takes its seed there."""
    items._sampler_iter = BegunOrder(items._sampler_iter)
