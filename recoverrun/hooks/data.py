"""Data iterators that can also serve the position of another slot.

The iterator of every `DataLoader` is wrapped. In normal work it hands out what the loader yields
and counts. While a microbatch is re-executed as a lost rank, the same call is answered by a clone
of the loader whose samplers carry that rank, started from where the lost rank had created its own
iterator and skipped forward by index: no datum is read on the way (docs/injection.md, "Data").

A position is an absolute count since the iterator was created. All ranks run the same code, so a
lost rank stands where this rank stood at the same microbatch.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from recoverrun.hooks import rng

RANK_NAMES = ("rank", "process_index", "dp_rank")
SAMPLER_NAMES = ("batch_sampler", "sampler", "base_sampler", "_sampler")


class NotReplayable(Exception):
    """This data source cannot be served for another slot; the text is for the user."""


class Impersonation(Protocol):
    """What an iterator asks the runtime at every draw."""

    @property
    def acting_rank(self) -> int | None:
        """The lost rank being impersonated, or None in normal work."""

    @property
    def own_rank(self) -> int: ...

    @property
    def fresh(self) -> bool:
        """One more microbatch is computed on our own next data."""

    def created_at(self, number: int, rank: int) -> rng.Streams | None:
        """Where `rank`'s streams stood when it created its iterator `number`, if it said so."""

    def drawn(self, source: "Source", index: int, item: Any) -> None:
        """Note a draw of normal work."""


class Source(Protocol):
    """Anything whose items depend on the rank: a loader's iterator, a generator of the script."""

    number: int
    count: int
    ended: bool

    def serve(self, rank: int, index: int) -> Any:
        """Item `index` as `rank` would have drawn it."""

    def seek(self, rank: int, index: int) -> None:
        """The next draw as `rank` is number `index`."""

    def forget(self, rank: int) -> None:
        """Drop what is kept for `rank`."""


@dataclass(slots=True)
class Twin:
    """The iterator of another rank's clone, and how many items it has passed."""

    items: Iterator[Any]
    at: int = 0


@dataclass(slots=True, eq=False)
class LoaderIterator:
    """The iterator of `loader`, number `number` of this process."""

    loader: "DataLoader[Any]"
    make: Callable[[Any], Iterator[Any]]
    runtime: Impersonation
    number: int
    own: Iterator[Any] = field(init=False)
    streams: rng.Streams = field(init=False)
    count: int = 0
    twins: dict[int, Twin] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    seeds: list[tuple[Any, Any]] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self.streams = rng.read()
        self.seeds = [_sampler_state(sampler) for sampler in samplers_of(self.loader)]
        self.own = self.make(self.loader)

    def __iter__(self) -> "LoaderIterator":
        return self

    def __len__(self) -> int:
        return len(self.own)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "streams"):  # not yet made: a real attribute error, no recursion
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
        try:
            item = next(self.own)
        except StopIteration:
            self.ended = True
            raise
        self.runtime.drawn(self, self.count, item)
        self.count += 1
        return item

    def _fresh(self) -> Any:
        """The next item of our own, one more than the script asks for; from the start at the end.

        The script's own iterator is shared, so that no item is used twice.
        """
        for _ in range(2):
            try:
                return next(self.own)
            except StopIteration:
                self.own = self.make(self.loader)
        raise NotReplayable(f"the data set of {type(self.loader).__name__} is empty")

    def seek(self, rank: int, index: int) -> None:
        self.positions[rank] = index

    def forget(self, rank: int) -> None:
        self.twins.pop(rank, None)
        self.positions.pop(rank, None)

    def serve(self, rank: int, index: int) -> Any:
        """Item `index` as `rank` would draw it. Raises NotReplayable, or what the data set does."""
        if self.runtime.fresh:
            return self._fresh()
        twin = self.twins.get(rank)
        if twin is None or twin.at > index:
            twin = self.twins[rank] = Twin(items=self._begin(rank))
        while twin.at < index:
            _skip(twin.items)
            twin.at += 1
        twin.at += 1
        return next(twin.items)

    def _begin(self, rank: int) -> Iterator[Any]:
        """A fresh iterator of `rank`'s clone, created where that rank created its own.

        If that rank was lost before this iterator existed, its adopted stream pays for the numbers
        that creating an iterator draws, as the rank itself would have.
        """
        clone = clone_for(self.loader, rank, self.runtime.own_rank)
        for sampler, state in zip(samplers_of(clone), self.seeds, strict=True):
            _restore_sampler(sampler, state)
        created = self.runtime.created_at(self.number, rank)
        if created is None:
            return self.make(clone)
        present = rng.read()
        rng.restore(created)
        try:
            return self.make(clone)
        finally:
            rng.restore(present)


def samplers_of(loader: "DataLoader[Any]") -> list[Any]:
    """Sampler objects below a loader, outermost first, each once."""
    found: list[Any] = []
    todo = [vars(loader).get(name) for name in ("batch_sampler", "sampler")]
    while todo:
        sampler = todo.pop(0)
        if sampler is None or not hasattr(sampler, "__dict__"):
            continue
        if any(sampler is known for known in found):
            continue
        found.append(sampler)
        todo += [vars(sampler).get(name) for name in SAMPLER_NAMES]
    return found


def clone_for(loader: "DataLoader[Any]", rank: int, own_rank: int) -> "DataLoader[Any]":
    """A loader over the same data set whose samplers are those of `rank`; works in-process.

    Raises NotReplayable for iterable data sets: they keep their rank to themselves.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise NotReplayable(
            f"the data set {type(loader.dataset).__name__} is iterable: its position "
            "cannot be re-created for another rank"
        )
    copies: dict[int, Any] = {}

    def copied(sampler: Any) -> Any:
        if id(sampler) in copies:
            return copies[id(sampler)]
        twin = copies[id(sampler)] = copy.copy(sampler)
        for name in SAMPLER_NAMES:
            below = vars(twin).get(name)
            if below is not None and hasattr(below, "__dict__"):
                vars(twin)[name] = copied(below)
        for name in RANK_NAMES:
            if type(vars(twin).get(name)) is int and vars(twin)[name] == own_rank:
                vars(twin)[name] = rank
        return twin

    clone = copy.copy(loader)
    state = vars(clone)
    for name in ("batch_sampler", "sampler"):
        if state.get(name) is not None and hasattr(state[name], "__dict__"):
            state[name] = copied(state[name])
    state.update(
        {"_iterator": None, "num_workers": 0, "prefetch_factor": None, "pin_memory": False,
         "persistent_workers": False, "timeout": 0}
    )
    return clone


def _skip(items: Iterator[Any]) -> None:
    """Pass one item; an in-process loader over a map-style data set needs only its indices."""
    if isinstance(items, _BaseDataLoaderIter) and items._num_workers == 0:
        items._next_index()
    else:
        next(items)


def _sampler_state(sampler: Any) -> tuple[Any, Any]:
    generator = getattr(sampler, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    return state, getattr(sampler, "epoch", None)


def _restore_sampler(sampler: Any, state: tuple[Any, Any]) -> None:
    seed, epoch = state
    if seed is not None:
        sampler.generator = torch.Generator()
        sampler.generator.set_state(seed)
    if epoch is not None:
        sampler.epoch = epoch
