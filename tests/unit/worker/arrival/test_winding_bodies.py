"""Code between two loops of the path runs once in a fresh process: it finds what it needs."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.unit.arrivals import both
from tests.unit.worker.arrival.test_winding import HEAD, held_line

pytestmark = pytest.mark.usefixtures("streams_put_back")

LOOPS = {
    "batches of a step from an iterator": """
def fit():
    for epoch in range(4):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        for step in range(3):
            taken = [next(batches) for _ in range(2)]
            for i, x in enumerate(taken):  # held
                train(epoch, step, i, x)
fit()
""",
    "batches of a step from a library's generator": """
def fit():
    for epoch in range(4):
        sampler.set_epoch(epoch)
        batches = ahead(loader)
        for step in range(3):
            taken = [next(batches) for _ in range(2)]
            for i, x in enumerate(taken):  # held
                train(epoch, step, i, x)
fit()
""",
    "a library's generator in a variable": """
def fit():
    for epoch in range(4):
        sampler.set_epoch(epoch)
        batches = ahead(loader)
        for step in range(6):  # held
            train(epoch, step, next(batches))
fit()
""",
    "batches of a step from the script's generator": """
def endless():
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1
def fit():
    batches = endless()
    for step in range(12):
        taken = [next(batches) for _ in range(2)]
        for i, x in enumerate(taken):  # held
            train(step, i, x)
fit()
""",
    "a sampler that makes its generator as it begins": """
class Seeded(torch.utils.data.RandomSampler):
    epoch = 0
    def __iter__(self):
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(3 + self.epoch)
        yield from super().__iter__()
        self.epoch += 1
seeded = DataLoader(data, 2, sampler=Seeded(data))
def fit():
    for epoch in range(2):
        batches = ahead(seeded)
        for step in range(5):
            taken = [next(batches) for _ in range(2)]
            for i, x in enumerate(taken):  # held
                train(epoch, step, i, x)
        for x in batches:
            pass
fit()
""",
    "a loop over a library's generator, which holds an item back": """
shuffled = DataLoader(data, 2, shuffle=True)
for epoch in range(3):
    for x in ahead(shuffled):  # held
        train(epoch, x)
""",
    "a counter between two loops": """
def fit():
    done = 0
    for epoch in range(5):
        scale = 2 ** done
        for step in range(3):  # held
            train(epoch, step, scale)
            done += 1
fit()
""",
}


def ahead(loader: Iterable[Any]) -> Iterator[Any]:
    """Not the script's own, and one item ahead, as those of accelerate are."""
    items = iter(loader)
    item = next(items)
    for following in items:
        yield item
        item = following
    yield item


@pytest.mark.parametrize("number", [6, 8, 9, 11])
@pytest.mark.parametrize("name", LOOPS)
def test_the_rest_is_that_of_a_process_that_ran_all(name: str, number: int) -> None:
    text = HEAD + LOOPS[name]

    survivor, newcomer = both(text, held_line(text), number, ahead=ahead)

    assert newcomer.noted == survivor.noted
    assert newcomer.noted


HELD_BACK = {
    "taken before the loop": """
shuffled = DataLoader(data, 2, shuffle=True)
def fit():
    for epoch in range(3):
        batches = ahead(shuffled)
        for step in range(12):
            taken = [next(batches)]
            for i, x in enumerate(taken):  # held
                train(epoch, step, i, x)
fit()
""",
    "the loop's own": """
shuffled = DataLoader(data, 2, shuffle=True)
for epoch in range(3):
    for x in ahead(shuffled):  # held
        train(epoch, x)
""",
}


@pytest.mark.parametrize("number", [6, 8, 11, 12])
@pytest.mark.parametrize("name", HELD_BACK)
def test_the_batch_of_another_rank_can_be_found_from_the_first_step_on(
    name: str, number: int
) -> None:
    text = HEAD + HELD_BACK[name]

    survivor, newcomer = both(text, held_line(text), number, ahead=ahead)

    assert newcomer.noted == survivor.noted
    assert newcomer.drew == survivor.drew
    assert all(newcomer.drew)
