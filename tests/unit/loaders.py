"""Data loaders of several kinds, read as a process of any rank reads them, for tests."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from recoverrun.worker.data.iterable_snapshot import IterableSnapshot
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_state import LoaderState
from recoverrun.worker.data.worker_seed_check import SeedCheck

WORLD, ITEMS, OWN, OTHER = 3, 53, 0, 2
ORIGINAL_ITER = DataLoader.__iter__


class Numbers(Dataset[Any]):
    """Counts what is read, also of its copies; with `noise`, every item draws a random number."""

    read: ClassVar[list[int]] = []

    def __init__(self, noise: bool = False) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        extra = torch.rand(1).item() if self.noise else 0.0
        return torch.tensor([float(index), extra])


class Strided:
    """A sampler of a script's own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, ITEMS, WORLD))

    def __len__(self) -> int:
        return len(range(self.rank, ITEMS, WORLD))


class Shards:
    """A batch sampler that deals the batches of another to `process_index`."""

    def __init__(self, batch_sampler: Any, process_index: int) -> None:
        self.batch_sampler = batch_sampler
        self.process_index = process_index

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(iter(self.batch_sampler), self.process_index, None, WORLD)

    def __len__(self) -> int:
        return len(self.batch_sampler) // WORLD


def generator(rank: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(11 + rank)


def distributed(rank: int, **options: Any) -> DistributedSampler[Any]:
    return DistributedSampler(Numbers(), WORLD, rank, seed=3, **options)


def sharing_a_generator(data: Any, rank: int) -> "DataLoader[Any]":
    return DataLoader(data, batch_size=2, shuffle=True, generator=generator())


WEIGHTS = torch.arange(1.0, ITEMS + 1).tolist()


Make = Callable[[Any, int], "DataLoader[Any]"]


LOADERS: dict[str, Make] = {
    "distributed": lambda data, rank: DataLoader(data, 2, sampler=distributed(rank)),
    "distributed in order": lambda data, rank: DataLoader(
        data, 2, sampler=distributed(rank, shuffle=False), drop_last=True
    ),
    "distributed, last dropped": lambda data, rank: DataLoader(
        data, 3, sampler=distributed(rank, drop_last=True), drop_last=True
    ),
    "distributed, single items": lambda data, rank: DataLoader(
        data, batch_size=None, sampler=distributed(rank)
    ),
    "distributed, batches": lambda data, rank: DataLoader(
        data, batch_sampler=BatchSampler(distributed(rank), 2, drop_last=False)
    ),
    "shuffled": lambda data, rank: DataLoader(data, 2, shuffle=True),
    "shuffled, last dropped": lambda data, rank: DataLoader(data, 3, shuffle=True, drop_last=True),
    "shuffled by a generator": lambda data, rank: DataLoader(
        data, 2, sampler=RandomSampler(data, generator=generator())
    ),
    "shuffled by the loader's generator": sharing_a_generator,
    "with replacement": lambda data, rank: DataLoader(
        data, 2, sampler=RandomSampler(data, replacement=True, num_samples=40)
    ),
    "weighted": lambda data, rank: DataLoader(data, 2, sampler=WeightedRandomSampler(WEIGHTS, 20)),
    "subset": lambda data, rank: DataLoader(
        data, 2, sampler=SubsetRandomSampler(range(20), generator=generator())
    ),
    "random batches": lambda data, rank: DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=True)
    ),
    "shuffled by a generator of the rank": lambda data, rank: DataLoader(
        data, 2, shuffle=True, generator=generator(rank)
    ),
    "two generators of the rank": lambda data, rank: DataLoader(
        data,
        2,
        sampler=RandomSampler(data, generator=generator(rank)),
        generator=generator(rank + 9),
    ),
    "every third row": lambda data, rank: DataLoader(
        Subset(data, range(rank, ITEMS, WORLD)), 3, shuffle=True, generator=generator(rank)
    ),
    "a third, as a list": lambda data, rank: DataLoader(
        Subset(data, list(range(rank * 17, rank * 17 + 17))), 2, shuffle=True
    ),
    "rows by chance": lambda data, rank: DataLoader(
        Subset(data, torch.randperm(ITEMS)[:20].tolist()), 2
    ),
    "a subset of a subset": lambda data, rank: DataLoader(
        Subset(Subset(data, range(40)), torch.randperm(40)[:20]), 2, shuffle=True
    ),
    "a sampler's rows": lambda data, rank: DataLoader(
        data, 2, sampler=SubsetRandomSampler(range(rank, ITEMS, WORLD))
    ),
    "own sampler": lambda data, rank: DataLoader(data, 2, sampler=Strided(rank)),
    "own batch sampler": lambda data, rank: DataLoader(
        data, batch_sampler=Shards(BatchSampler(SequentialSampler(data), 2, False), rank)
    ),
    "shuffled shards": lambda data, rank: DataLoader(
        data, batch_sampler=Shards(BatchSampler(RandomSampler(data), 2, False), rank)
    ),
}


def with_workers(name: str, lasting: bool) -> Make:
    def make(data: Any, rank: int) -> "DataLoader[Any]":
        loader = LOADERS[name](data, rank)
        vars(loader).update(num_workers=2, prefetch_factor=2, persistent_workers=lasting)
        return loader

    return make


WITH_WORKERS: dict[str, Make] = {
    f"{name}{how}": with_workers(name, lasting)
    for name in (
        "distributed",
        "shuffled",
        "shuffled by the loader's generator",
        "every third row",
    )
    for how, lasting in ((", workers", False), (", lasting workers", True))
}


@dataclass
class Play:
    """The runtime's side of `data.DataRuntime`."""

    own_rank: int = OWN
    acting_rank: int | None = None
    asking: int = 0
    fresh: bool = False
    layout: None = None
    seen: frozenset[int] = frozenset()
    created: dict[tuple[int, int], Origin] = field(default_factory=dict)
    draws: list[tuple[int, Any]] = field(default_factory=list)
    spoken_for: int | None = None
    seeding: SeedCheck = field(default_factory=SeedCheck)

    def created_at(self, number: int, rank: int) -> Origin | None:
        return self.created.get((number, rank))

    def theirs(self, data: Any, begun: IterableSnapshot | None) -> dict[str, Any]:
        return {}

    def drawn(self, source: Any, index: int, item: Any) -> None:
        self.draws.append((index, item))

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def believe(self, loader: Any, read: Any) -> None:
        self.seeding.believe(loader, read)

    @contextmanager
    def speaking_as(self, rank: int) -> Iterator[None]:
        self.spoken_for = rank
        yield
        self.spoken_for = None


def seed(rank: int) -> None:
    torch.manual_seed(50 + rank)
    random.seed(rank)


def epochs_of(make: Make, rank: int, play: Play | None, noise: bool = False) -> Any:
    """Two epochs as a process of `rank` runs them: (items, streams at creation) of each, and the
    loader. With `play`, its iterators are ours, and stay.
    """
    seed(rank)
    loader = make(Numbers(noise), rank)
    found = []
    for epoch in range(2):
        torch.rand(5)  # something of the script's own
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        point = LoaderState.of(loader)
        at = Origin.of(loader, point.streams, point.generator_states)
        if play is None:
            items: Any = ORIGINAL_ITER(loader)
        else:
            items = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=epoch)
        torch.rand(3)  # between creation and the first item
        found.append((items, list(items), at))
    return found, loader


def read_on(loader: "DataLoader[Any]", count: int, passes: int = 1) -> LoaderIterator:
    """The iterator of the last pass, which has given so many items; training draws between them."""
    for _ in range(passes - 1):
        list(LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=0))
    one = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=passes)
    torch.rand(5)
    for _ in range(count):
        next(one)
        random.random()
        torch.rand(3)
    return one
