"""Loaders and data sets that keep their place are read as another rank, and stay in it."""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.errors import NotReplayable
from tests.unit.loaders import ORIGINAL_ITER, OTHER, OWN, WORLD, Play

pytestmark = [
    pytest.mark.usefixtures("streams_put_back"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's
]

STATEFUL_ITER = StatefulDataLoader.__iter__
COUNT = 60


class Reader:
    def __init__(self) -> None:
        self.line = -1

    def next(self) -> int:
        self.line += 1
        return self.line


class Packed(IterableDataset[int]):
    """Lines of one rank, of which every third is kept for later."""

    def __init__(self, rank: int) -> None:
        self.rank, self.reader = rank, Reader()
        self.held: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while True:
            line = self.reader.next()
            if line % WORLD == self.rank:
                self.held.append(line)
            if len(self.held) == 3:
                yield self.held.pop(0)
                yield self.held.pop(1)


class Counting(Dataset[float]):
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> float:
        self.asked += 1
        return index + self.asked / 100


class Noisy(Counting):
    def __init__(self) -> None:
        self.chance = numpy.random.default_rng(3)

    def __getitem__(self, index: int) -> float:
        return index + float(self.chance.random())


class Plain(Counting):
    def __getitem__(self, index: int) -> float:
        return index


class Shuffling:
    """In place, and read as it lies."""

    def __init__(self) -> None:
        self.order, self.chance = list(range(COUNT)), random.Random(1)

    def __iter__(self) -> Iterator[int]:
        self.chance.shuffle(self.order)
        for place in range(COUNT):
            yield self.order[place]


def packed(rank: int) -> "DataLoader[Any]":
    return DataLoader(Packed(rank), batch_size=None)


def rows(data: Any, rank: int) -> "DataLoader[Any]":
    return DataLoader(data, 2, sampler=DistributedSampler(data, WORLD, rank, seed=1))


LOADERS: dict[str, Any] = {
    "a stream that packs": packed,
    "a data set that counts": lambda rank: rows(Counting(), rank),
    "a data set that draws": lambda rank: rows(Noisy(), rank),
    "a sampler that shuffles in place": lambda rank: DataLoader(Plain(), 2, sampler=Shuffling()),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_script_gets_what_it_would_have_got(kind: str) -> None:
    make = LOADERS[kind]
    alone = [str(item) for item, _ in zip(make(OWN), range(8), strict=False)]
    iterator = LoaderIterator(loader=make(OWN), make=ORIGINAL_ITER, runtime=Play(), number=0)

    given = []
    for index in range(8):
        given.append(str(next(iterator)))
        iterator.serve(OTHER, index)

    assert given == alone


def test_a_stream_that_packs_is_read_from_where_it_stood() -> None:
    theirs = [item for item, _ in zip(packed(OTHER), range(6), strict=False)]
    iterator = LoaderIterator(loader=packed(OWN), make=ORIGINAL_ITER, runtime=Play(), number=0)
    for _ in range(4):
        next(iterator)

    assert [iterator.serve(OTHER, index) for index in (0, 1, 5)] == [*theirs[:2], theirs[5]]


def test_one_that_goes_on_from_pass_to_pass_is_not_followed() -> None:
    loader = packed(OWN)
    first = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=0)
    for _ in range(3):
        next(first)
    again = LoaderIterator(loader=loader, make=ORIGINAL_ITER, runtime=Play(), number=1)

    first.serve(OTHER, 0)
    with pytest.raises(NotReplayable, match="Packed goes on from pass to pass"):
        again.serve(OTHER, 0)


# --------------------------------------------------------------------------- torchdata's


class Placed(IterableDataset[int]):
    """Says where it is, and can be put there."""

    def __init__(self, rank: int) -> None:
        self.rank, self.at = rank, 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            yield (self.at - 1) * WORLD + self.rank

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def of_rows(rank: int, **options: Any) -> "StatefulDataLoader[Any]":
    data = Plain()
    sampler = StatefulDistributedSampler(data, WORLD, rank, seed=1)
    return StatefulDataLoader(data, 2, sampler=sampler, **options)


def of_stream(rank: int, **options: Any) -> "StatefulDataLoader[Any]":
    return StatefulDataLoader(Placed(rank), 2, **options)


STATEFUL: dict[str, Any] = {"rows": of_rows, "a stream": of_stream}


def served(loader: "StatefulDataLoader[Any]", items: int) -> list[list[int]]:
    """By a copy as OTHER, while our own goes on."""
    iterator = LoaderIterator(loader=loader, make=STATEFUL_ITER, runtime=Play(), number=0)
    found = []
    for index in range(items):
        next(iterator)
        found.append(iterator.serve(OTHER, index).tolist())
    return found


@pytest.mark.parametrize(("kind", "workers"), [("rows", 0), ("rows", 2), ("a stream", 0)])
def test_loaders_of_torchdata_are_read_as_another_rank(kind: str, workers: int) -> None:
    make = STATEFUL[kind]
    theirs = [
        item.tolist() for item, _ in zip(make(OTHER, num_workers=workers), range(4), strict=False)
    ]

    assert served(make(OWN, num_workers=workers), 4) == theirs


@pytest.mark.parametrize("kind", STATEFUL)
def test_they_go_on_from_a_state_that_was_loaded(kind: str) -> None:
    make = STATEFUL[kind]
    theirs = [item.tolist() for item, _ in zip(make(OTHER), range(6), strict=False)]
    saved = make(OWN)
    for _ in zip(saved, range(3), strict=False):
        pass
    state = saved.state_dict()
    loader = make(OWN)
    loader.load_state_dict(state)
    at = state["_num_yielded"]

    assert served(loader, 6 - at) == theirs[at:]


def test_worker_processes_that_go_on_from_a_state_are_not_followed() -> None:
    saved = of_rows(OWN, num_workers=1)
    next(iter(saved))
    loader = of_rows(OWN, num_workers=1)
    loader.load_state_dict(saved.state_dict())

    with pytest.raises(NotReplayable, match="go on from a state that was loaded"):
        served(loader, 1)


def test_what_is_saved_is_the_script_s_own_place() -> None:
    loader = of_stream(OWN)
    iterator = LoaderIterator(loader=loader, make=STATEFUL_ITER, runtime=Play(), number=0)
    next(iterator)
    before = loader.state_dict()
    iterator.serve(OTHER, 3)

    assert loader.state_dict() == before
