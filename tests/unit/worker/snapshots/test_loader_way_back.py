"""The way back of a loader leads to where it is, or says so."""

import random
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from recoverrun.worker.data.loader_iterator import LoaderIterator
from recoverrun.worker.snapshots.loader_states import is_doubtful
from recoverrun.worker.snapshots.loader_way_back import tried
from tests.unit.loaders import LOADERS, OWN, Make, Numbers, read_on, seed

pytestmark = pytest.mark.usefixtures("streams_put_back")

MODULES = frozenset({__name__})


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


class Drawing(Sampler[int]):
    """Draws each row from those that are left, and counts them."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        left = list(range(20))
        while left:
            self.given += 1
            yield left.pop(random.randrange(len(left)))


class Lines(IterableDataset[float]):
    """Reads numbers in order; with `noise` it draws one for each, and with `rng` of its own."""

    def __init__(self, noise: bool = False, rng: random.Random | None = None) -> None:
        self.noise, self.rng = noise, rng

    def __iter__(self) -> Iterator[float]:
        for number in range(40):
            noise = random.random() if self.noise else 0.0
            yield number + noise + (self.rng.random() if self.rng else 0.0)


class Shuffled(IterableDataset[float]):
    """Draws from a buffer that it keeps in itself, and goes on where it is from pass to pass."""

    def __init__(self) -> None:
        self.place, self.buffer, self.rows = 0, list[float](), deque(range(90))

    def __iter__(self) -> Iterator[float]:
        buffer = self.buffer
        while self.rows:
            self.place += 1
            buffer.append(self.rows.popleft() + self.place / 100)
            if len(self.buffer) > 6:
                yield buffer.pop(random.randrange(len(buffer)))


class Held(IterableDataset[int]):
    """Its generator holds a lock, which cannot be told."""

    def __iter__(self) -> Iterator[int]:
        lock, at = threading.Lock(), random.randrange(100)
        while True:
            with lock:
                at += random.randrange(3)
            yield at


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_samplers_that_begin_anew_alike_need_no_state(make: Make, passes: int) -> None:
    seed(OWN)

    assert tried(read_on(make(Numbers(), OWN), 3, passes), MODULES) == ("", False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Numbers(), 2, sampler=Remembers()),
        lambda: DataLoader(Numbers(), 2, sampler=Remembers(), drop_last=True),
        lambda: DataLoader(Numbers(), 2, sampler=Drawing()),
        lambda: DataLoader(Numbers(), batch_size=None, sampler=Drawing()),
        lambda: DataLoader(Shuffled(), 2),
        lambda: DataLoader(Shuffled(), batch_size=None),
    ],
)
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("given", [2, 3])
def test_a_loader_that_keeps_a_state_comes_there_once_it_is_given_that(
    make: Any, passes: int, given: int
) -> None:
    one = read_on(make(), given, 1)
    if passes == 2:
        one = read_on(one.loader, given, 1)

    assert is_doubtful(one)
    assert tried(one, MODULES) == ("", True)


class Flipping(Sampler[int]):
    """Gives each row, or passes it by: begun anew, it often comes to the same place by chance."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng

    def __iter__(self) -> Iterator[int]:
        row = 0
        while row < 40:
            if (self.rng or random).random() < 0.9:
                yield row
            row += 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("own", [False, True])
def test_one_that_comes_there_by_chance_keeps_a_state(seed: int, own: bool) -> None:
    random.seed(seed)
    sampler = Flipping(random.Random(seed) if own else None)
    one = read_on(DataLoader(Numbers(), 2, sampler=sampler), 2)

    assert tried(one, MODULES) == ("", True)


class Reseeding(Sampler[int]):
    """Draws each row from a generator of torch's, which each pass seeds alike."""

    def __init__(self) -> None:
        self.numbers = torch.Generator()

    def __iter__(self) -> Iterator[int]:
        self.numbers.manual_seed(3)
        for _ in range(30):
            yield int(torch.randint(20, (), generator=self.numbers))


@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_seeds_its_generator_anew_comes_there_by_itself(workers: int) -> None:
    loader = DataLoader(Numbers(), 2, sampler=Reseeding(), num_workers=workers)

    assert tried(read_on(loader, 3, 2), MODULES) == ("", False)


def test_with_worker_processes_it_does_not() -> None:
    one = read_on(DataLoader(Numbers(), 2, sampler=Remembers(), num_workers=2), 3)

    why, keeps = tried(one, MODULES)

    assert why.startswith("a DataLoader over a Numbers by Remembers gives something else")
    assert not keeps


def test_one_that_holds_what_cannot_be_told_does_not() -> None:
    one = read_on(DataLoader(Held(), 2), 3)

    why, _ = tried(one, MODULES)

    assert why == "a DataLoader over a Held keeps a state, and what lock holds cannot be told"


@pytest.mark.parametrize("data", [Lines(), Lines(noise=True), Lines(rng=random.Random(3))])
def test_an_iterable_data_set_that_draws_for_each_item_comes_there(data: Lines) -> None:
    one = read_on(DataLoader(data, 2), 3)

    assert is_doubtful(one) and not tried(one, MODULES)[0]


def test_items_of_a_class_that_is_not_packed_are_believed() -> None:
    one = read_on(DataLoader(Lines(), 2, collate_fn=lambda items: threading.Lock()), 3)

    assert tried(one, MODULES) == ("", False)


def test_samplers_of_torch_and_what_was_not_read_yet_are_not_tried() -> None:
    assert not is_doubtful(read_on(LOADERS["shuffled"](Numbers(), OWN), 3))
    assert not is_doubtful(read_on(DataLoader(Lines(), 2), 0))
    assert not is_doubtful(read_on(DataLoader(Lines(), 2, num_workers=1), 1))


def test_a_sampler_without_attributes_is_one_like_others() -> None:
    class Bare(Sampler[int]):
        __slots__ = ()

        def __len__(self) -> int:
            return 9

        def __iter__(self) -> Iterator[int]:
            return iter(range(9))

    one: LoaderIterator = read_on(DataLoader(Numbers(), 2, sampler=Bare()), 2)

    assert tried(one, MODULES) == ("", False)
