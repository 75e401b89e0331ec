"""Another rank's data, bit for bit what a real process of that rank draws, without a trace here."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy
import pytest
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

from recoverrun.worker.data.batch_substitution import served
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.data.loader_state import Point
from recoverrun.worker.data.source import Draw
from recoverrun.worker.data.weak_source import Adopted
from recoverrun.worker.data.worker_seed_check import Seeding
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.rng.streams import read_streams, restore_streams

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
    """The runtime's side of `data.Impersonation`."""

    own_rank: int = OWN
    acting_rank: int | None = None
    asking: int = 0
    fresh: bool = False
    layout: None = None
    seen: frozenset[int] = frozenset()
    created: dict[tuple[int, int], Origin] = field(default_factory=dict)
    draws: list[tuple[int, Any]] = field(default_factory=list)
    spoken_for: int | None = None
    seeding: Seeding = field(default_factory=Seeding)

    def created_at(self, number: int, rank: int) -> Origin | None:
        return self.created.get((number, rank))

    def drawn(self, source: Any, index: int, item: Any) -> None:
        self.draws.append((index, item))

    def believe(self, loader: Any, read: Any) -> None:
        self.seeding.believe(loader, read)

    @contextmanager
    def speaking_as(self, rank: int) -> Iterator[None]:
        self.spoken_for = rank
        yield
        self.spoken_for = None


pytestmark = pytest.mark.usefixtures("streams_put_back")


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
        point = Point.of(loader)
        at = Origin.of(loader, point.streams, point.packed)
        if play is None:
            items: Any = ORIGINAL_ITER(loader)
        else:
            items = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=epoch)
        torch.rand(3)  # between creation and the first item
        found.append((items, list(items), at))
    return found, loader


@pytest.mark.parametrize("name", [*LOADERS, *WITH_WORKERS])
def test_what_is_served_is_what_that_rank_draws(name: str) -> None:
    make = {**LOADERS, **WITH_WORKERS}[name]
    theirs, _ = epochs_of(make, OTHER, None)
    play = Play()
    mine, loader = epochs_of(make, OWN, play)
    play.created = {(epoch, OTHER): at for epoch, (_, _, at) in enumerate(theirs)}
    before = read_streams(), [_state(one) for one in (loader.generator, loader.sampler)]

    for (iterator, _, _), (_, expected, _) in zip(mine, theirs, strict=True):
        order = [0, 1, 1, 4, 2, len(expected) - 1]  # forward, again, back
        for index in order:
            assert torch.equal(iterator.serve(OTHER, index), expected[index])
        with pytest.raises(StopIteration):
            iterator.serve(OTHER, len(expected))

    assert (read_streams(), [_state(one) for one in (loader.generator, loader.sampler)]) == before


def _state(owner: Any) -> Any:
    held = owner if isinstance(owner, torch.Generator) else getattr(owner, "generator", None)
    return None if held is None else held.get_state().tolist()


@pytest.mark.parametrize("name", LOADERS)
def test_serving_another_rank_leaves_our_own_items_as_they_are(name: str) -> None:
    plain, _ = epochs_of(LOADERS[name], OWN, None)
    theirs, _ = epochs_of(LOADERS[name], OTHER, None)
    play = Play(created={(0, OTHER): theirs[0][2]})
    seed(OWN)
    loader = LOADERS[name](Numbers(), OWN)
    torch.rand(5)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    torch.rand(3)
    own = []
    for index in range(4):
        own.append(next(iterator))
        iterator.serve(OTHER, index)

    assert all(torch.equal(one, other) for one, other in zip(own, plain[0][1], strict=False))
    assert [index for index, _ in play.draws] == [0, 1, 2, 3]


def test_items_that_draw_numbers_are_served_from_the_streams_of_that_moment() -> None:
    """The first item of the other rank, with the noise that it drew."""
    theirs, _ = epochs_of(LOADERS["distributed"], OTHER, None, noise=True)
    play = Play(created={(0, OTHER): theirs[0][2]})
    mine, _ = epochs_of(LOADERS["distributed"], OWN, play, noise=True)
    restore_streams(theirs[0][2].streams)
    torch.empty((), dtype=torch.int64).random_()  # the seed of the loader's workers
    torch.rand(3)

    assert torch.equal(mine[0][0].serve(OTHER, 0), theirs[0][1][0])


def test_passing_over_items_reads_none() -> None:
    mine, loader = epochs_of(LOADERS["distributed"], OWN, Play())
    loader.dataset.read.clear()

    mine[0][0].serve(OTHER, 3)

    assert len(loader.dataset.read) == 2  # one batch


def test_while_acting_the_iterator_is_that_rank_s_and_ours_waits() -> None:
    theirs, _ = epochs_of(LOADERS["distributed"], OTHER, None)
    play = Play()
    seed(OWN)
    loader = LOADERS["distributed"](Numbers(), OWN)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    first = next(iterator)
    play.acting_rank = OTHER
    iterator.seek(OTHER, 1)
    acted = [next(iterator), next(iterator)]
    play.acting_rank = None
    second = next(iterator)
    plain = list(ORIGINAL_ITER(LOADERS["distributed"](Numbers(), OWN)))

    assert torch.equal(torch.stack(acted), torch.stack(theirs[0][1][1:3]))
    assert torch.equal(torch.stack([first, second]), torch.stack(plain[:2]))
    assert iterator.count == 2


def test_several_iterators_of_one_loader_stand_apart() -> None:
    play = Play()
    loader = LOADERS["own sampler"](Numbers(), OWN)
    one, other = (
        LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=number)
        for number in range(2)
    )
    next(one), next(one), next(other)

    assert one.serve(OTHER, 0)[0, 0] == OTHER and other.serve(OTHER, 1)[0, 0] == OTHER + 2 * WORLD
    assert (one.count, other.count) == (2, 1)


def test_an_exhausted_iterator_says_so_and_still_serves() -> None:
    mine, _ = epochs_of(LOADERS["own sampler"], OWN, Play())
    iterator = mine[0][0]

    assert iterator.ended
    assert iterator.serve(OTHER, 0)[0, 0] == OTHER
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("name", LOADERS)
def test_fresh_data_do_not_shorten_our_own(name: str) -> None:
    plain, _ = epochs_of(LOADERS[name], OWN, None)
    play = Play()
    seed(OWN)
    loader = LOADERS[name](Numbers(), OWN)
    torch.rand(5)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)
    torch.rand(3)
    own = []
    for item in iterator:
        own.append(item)
        play.fresh = True
        extra = [next(iterator) for _ in range(3)]
        play.fresh = False
        assert all(one.shape[-1] == 2 for one in extra)

    assert len(own) == len(plain[0][1])


class Jittered(Numbers):
    """Draws from a generator of its own, if `noise`."""

    def __init__(self, noise: bool) -> None:
        super().__init__(noise)
        self.chance = numpy.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return index + (int(self.chance.integers(5)) if self.noise else 0)


@pytest.mark.parametrize("noise", [False, True])
def test_what_workers_draw_from_a_generator_of_the_data_set_cannot_be_told(noise: bool) -> None:
    data = Jittered(noise)
    loader: DataLoader[Any] = DataLoader(data, 2, sampler=distributed(OWN), num_workers=1)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=0)
    before = data.chance.bit_generator.state

    if noise:
        with pytest.raises(NotReplayable, match="Jittered draws from a generator of its own in wo"):
            iterator.serve(OTHER, 1)
    else:
        iterator.serve(OTHER, 1)

    assert data.chance.bit_generator.state == before


def test_an_empty_data_set_has_no_fresh_data() -> None:
    play = Play(fresh=True)
    loader: DataLoader[Any] = DataLoader([], batch_size=1)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=play, number=0)

    with pytest.raises(NotReplayable, match="empty"):
        next(iterator)


def test_an_iterator_that_the_script_drops_is_gone() -> None:
    loader = LOADERS["own sampler"](Numbers(), OWN)
    iterator = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=4)
    next(iterator)
    kept = Adopted(iterator)
    alive = kept.ended, kept.count

    del iterator

    assert alive == (False, 1)
    assert kept.ended
    with pytest.raises(NotReplayable, match="iterator 4"):
        kept.serve(OTHER, 0)


def test_what_is_kept_for_a_rank_is_dropped_on_request() -> None:
    mine, _ = epochs_of(LOADERS["own sampler"], OWN, Play())
    iterator = mine[0][0]
    iterator.seek(OTHER, 1)
    iterator.serve(OTHER, 1)

    iterator.forget(OTHER)

    assert not iterator.iterators and not iterator.positions


def test_a_lost_rank_that_has_no_more_data_is_not_replayable() -> None:
    iterator = LoaderIterator(DataLoader([1.5]), ORIGINAL_ITER, Play(), 0)  # type: ignore[arg-type]
    item = next(iterator)

    assert served(item, [Draw(iterator, 0, item)], OTHER) == [(item, item)]
    with pytest.raises(NotReplayable, match=f"rank {OTHER} has no more data where this rank has"):
        served(item, [Draw(iterator, 1, item)], OTHER)
