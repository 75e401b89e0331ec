"""After winding, items and variables are those of a process that ran all iterations."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.arrivals import Newcomer, Process, both

pytestmark = pytest.mark.usefixtures("streams_put_back")

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Numbers(Dataset):
    read = []
    def __len__(self):
        return 24
    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor([float(index)])

data = Numbers()
generator = torch.Generator().manual_seed(4)
sampler = DistributedSampler(data, 2, 1, shuffle=True, seed=3)
loader = DataLoader(data, 2, sampler=sampler)
shuffled = DataLoader(data, 2, shuffle=True)
"""

LOOPS = {
    "range": """
total = 0
for step in range(9):  # held
    total += step
    train(step, total)
""",
    "range that counts down": """
for step in range(20, 0, -2):  # held
    train(step)
""",
    "epochs over a loader": """
seen = 0
for epoch in range(4):
    sampler.set_epoch(epoch)
    for i, x in enumerate(loader):  # held
        seen += len(x)
        train(epoch, i, x, seen)
""",
    "one pass over a loader": """
seen = 0
for i, x in enumerate(shuffled):  # held
    seen += len(x)
    train(i, x, seen)
""",
    "while with counters": """
step, lr = 0, 1.0
while True:  # held
    step += 1
    lr *= 0.5
    train(step, lr)
    if step == 20:
        break
""",
    "while whose test counts": """
step = 0
while (step := step + 1) < 20:  # held
    train(step)
""",
    "while whose test takes an item": """
batches = iter(shuffled)
taken = 0
while (x := next(batches, None)) is not None:  # held
    taken += 1
    train(x, taken)
""",
    "a trainer's functions": """
class Trainer:
    def __init__(self):
        self.count = 0
    def batch(self, x, scale):
        train(x, scale)
    def epoch(self, number):
        scale = 1.0
        for x in loader:  # held
            self.batch(x, scale)
            scale = scale / 2
    def fit(self, epochs):
        for number in range(epochs):
            sampler.set_epoch(number)
            self.epoch(number)
Trainer().fit(3)
""",
    "microbatches": """
def fit():
    done = 0
    for step in range(7):  # held
        for part in range(3):
            train(step, part, done)
        done += 3
fit()
""",
    "an iterator made before the loop": """
def fit():
    batches = iter(shuffled)
    for step in range(10):  # held
        train(step, next(batches))
fit()
""",
    "an iterator for each epoch": """
def fit():
    for epoch in range(4):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        for step in range(len(loader)):  # held
            train(epoch, step, next(batches))
fit()
""",
    "an iterator made anew within the loop": """
def fit():
    batches, epoch = iter(loader), 0
    for step in range(20):  # held
        x = next(batches, None)
        if x is None:
            epoch += 1
            sampler.set_epoch(epoch)
            batches = iter(loader)
            x = next(batches)
        train(step, epoch, x)
fit()
""",
    "an endless generator over a loader": """
def endless():
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1
def fit():
    stream = endless()
    step = 0
    for x in stream:  # held
        train(step, x)
        step += 1
        if step == 20:
            break
fit()
""",
    "a generator that looks at its items": """
def doubled():
    for epoch in range(4):
        for x in loader:
            yield 2 * x
def fit():
    for step, x in enumerate(doubled()):  # held
        train(step, x)
fit()
""",
    "a generator in a variable": """
def endless():
    while True:
        for x in shuffled:
            yield x + 1
def fit():
    stream = endless()
    for step in range(20):  # held
        x = next(stream)
        train(step, x)
        stream = stream
fit()
""",
    "enumerate in a variable": """
def fit():
    numbered = enumerate(shuffled)
    for step in range(10):  # held
        number, x = next(numbered)
        train(step, number, x)
        numbered = numbered
fit()
""",
    "worker processes": """
workers = DataLoader(data, 2, shuffle=True, num_workers=2)
for epoch in range(2):
    for x in workers:  # held
        train(epoch, x)
""",
    "worker processes that stay": """
workers = DataLoader(data, 2, shuffle=True, num_workers=2, persistent_workers=True)
for epoch in range(3):
    for x in workers:  # held
        train(epoch, x)
""",
    "a generator of the loader": """
own = DataLoader(data, 2, shuffle=True, generator=generator)
for epoch in range(3):
    for x in own:  # held
        train(epoch, x)
""",
    "data that draw numbers as they are read": """
class Noisy(Numbers):
    def __getitem__(self, index):
        return torch.tensor([float(index)]) + torch.rand(1)
noisy = DataLoader(Noisy(), 2, sampler=sampler)
for epoch in range(3):
    for x in noisy:  # held
        train(epoch, x)
""",
    "worker processes that draw numbers": """
class Noisy(Numbers):
    def __getitem__(self, index):
        return torch.tensor([float(index)]) + torch.rand(1)
noisy = DataLoader(Noisy(), 2, sampler=sampler, num_workers=2)
for epoch in range(2):
    for x in noisy:  # held
        train(epoch, x)
""",
    "an iterable data set": """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(float(n) for n in range(40))
for i, x in enumerate(DataLoader(Stream(), 2)):  # held
    train(i, x)
""",
    "a list": """
for name in ["a", "b", "c", "d", "e", "f", "g", "h"]:  # held
    train(name)
""",
    "an evaluation between": """
for epoch in range(3):
    best = sum(float(x.sum()) for x in DataLoader(data, 12))
    sampler.set_epoch(epoch)
    for x in loader:  # held
        train(epoch, x, best)
    best += sum(float(x.sum()) for x in DataLoader(data, 12))
""",
    "variables of the module and of closures": """
count = 0
def fit():
    inside = 0
    def more():
        nonlocal inside
        inside += 1
    global count
    for step in range(10):  # held
        count += 2
        inside += 1
        more()
        train(step, count, inside)
fit()
""",
}


def held_line(text: str) -> int:
    lines = text.splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith("# held"))


@pytest.mark.parametrize("number", [6, 7])
@pytest.mark.parametrize("name", LOOPS)
def test_the_rest_is_that_of_a_process_that_ran_all(name: str, number: int) -> None:
    text = HEAD + LOOPS[name]
    number = min(number, 6) if name == "microbatches" else number

    survivor, newcomer = both(text, held_line(text), number)

    assert newcomer.noted == survivor.noted
    assert newcomer.noted
    assert newcomer.came[0] == "before" and newcomer.came[-1] == "arrived"


def test_no_item_is_read_that_is_passed() -> None:
    text = HEAD + LOOPS["an iterator for each epoch"]

    survivor, newcomer = both(text, held_line(text), 9)

    read = newcomer.names["Numbers"].read
    assert len(read) == 2 * len(newcomer.noted), "two rows for each batch"


def test_without_its_slot_s_origin_a_newcomer_has_its_own_order() -> None:
    """At the survivors' place: what `equal-count` promises."""
    text = HEAD + LOOPS["epochs over a loader"]
    survivor = Process(text, held_line(text), 8)
    survivor.run()
    place = survivor.told.standing
    untold = [
        replace(one, opening=replace(one.opening, origin=None, started=None))
        for one in place.sources
    ]
    survivor.told.standing = replace(place, sources=tuple(untold))
    newcomer = Newcomer(text, survivor.told, 0, 0)
    newcomer.run()

    assert newcomer.noted == survivor.noted, "the sampler goes by nothing but its epoch"


def present(stood: list[Any]) -> list[Any]:
    """Without iterators that have ended, which are told as long as anything refers to them."""
    loops, sources, opened, _ = stood
    return [loops, sources[-1], opened]


@pytest.mark.parametrize(
    "name",
    ["an iterator for each epoch", "while whose test takes an item", "a trainer's functions"],
)
def test_a_newcomer_can_tell_the_next_one(name: str) -> None:
    text = HEAD + LOOPS[name]
    line = held_line(text)
    survivor, newcomer = both(text, line, 7)
    late = Newcomer(text, survivor.told, line, 2)
    late.run()
    next_one = Newcomer(text, late.told, line, 0)
    next_one.run()

    assert list(map(present, newcomer.stood)) == list(map(present, survivor.stood))
    assert next_one.noted == survivor.noted[2:]


@pytest.mark.parametrize("start", [5, 9])
def test_a_script_that_resumes_behind_the_item_begins_with_it(start: int) -> None:
    """It has loaded a newer checkpoint of its own, perhaps that of the end."""
    text = "for step in range(START, 9):  # held\n    train(step)\n"
    survivor = Process(text.replace("START", "0"), 1, 3)
    survivor.run()

    newcomer = Newcomer(text.replace("START", str(start)), survivor.told, 0, 0)
    newcomer.run()

    assert newcomer.noted == survivor.noted
