"""The way back of loaders is tried by the code that goes it."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.snapshots.loader_trials import is_doubtful, read_elsewhere, tried
from tests.unit.loaders import LOADERS, ORIGINAL_ITER, OWN, Make, Numbers, Play, seed

pytestmark = pytest.mark.usefixtures("streams_put_back")


class Remembers(Sampler[int]):
    """Its order depends on what it did before."""

    def __init__(self) -> None:
        self.rng = random.Random(5)

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        order = list(range(20))
        self.rng.shuffle(order)
        yield from order


class Lines(IterableDataset[float]):
    """Reads numbers in order; with `noise` it draws one for each, and with `rng` of its own."""

    def __init__(self, noise: bool = False, rng: random.Random | None = None) -> None:
        self.noise, self.rng = noise, rng

    def __iter__(self) -> Iterator[float]:
        for number in range(40):
            noise = random.random() if self.noise else 0.0
            yield number + noise + (self.rng.random() if self.rng else 0.0)


def read(loader: "DataLoader[Any]", count: int, passes: int = 1) -> LoaderIterator:
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


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_samplers_that_begin_anew_alike_come_to_the_same_place(make: Make, passes: int) -> None:
    seed(OWN)

    assert not tried(read(make(Numbers(), OWN), 3, passes))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_a_state_does_not(workers: int) -> None:
    one = read(DataLoader(Numbers(), 2, sampler=Remembers(), num_workers=workers), 3)

    assert is_doubtful(one)
    assert tried(one).startswith("a DataLoader over a Numbers by Remembers gives something else")


def test_an_iterable_data_set_that_is_read_alike_does() -> None:
    one = read(DataLoader(Lines(), 2), 3)

    assert is_doubtful(one) and not tried(one)


def test_items_of_a_class_that_is_not_packed_are_believed() -> None:
    one = read(DataLoader(Lines(), 2, collate_fn=lambda items: threading.Lock()), 3)

    assert not tried(one)


@pytest.mark.parametrize("data", [Lines(noise=True), Lines(rng=random.Random(3))])
def test_one_that_draws_random_numbers_does_not(data: Lines) -> None:
    one = read(DataLoader(data, 2), 3)

    assert tried(one)


def test_samplers_of_torch_and_what_was_not_read_yet_are_not_tried() -> None:
    assert not is_doubtful(read(LOADERS["shuffled"](Numbers(), OWN), 3))
    assert not is_doubtful(read(DataLoader(Lines(), 2), 0))
    assert not is_doubtful(read(DataLoader(Lines(), 2, num_workers=1), 1))


def test_a_loader_that_a_thread_reads_ahead_is_named() -> None:
    one = read(LOADERS["shuffled"](Numbers(), OWN), 2)
    assert not read_elsewhere([one])
    thread = threading.Thread(target=next, args=(one,))
    thread.start()
    thread.join()

    assert read_elsewhere([one]) == "a DataLoader over a Numbers by RandomSampler"
