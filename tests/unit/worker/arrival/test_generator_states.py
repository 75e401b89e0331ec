"""Generators go on, in a process that goes back, as they would have."""

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch

from recoverrun.worker.arrival import generator_states
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.instrumentation import Loop
from recoverrun.worker.tracking.microbatches import LoopFrame

OWN = frozenset({__name__})


def loop(items: Iterator[Any]) -> LoopFrame:
    header = SimpleNamespace(targets=frozenset[str]())
    return LoopFrame(cast(Loop, header), 1, items=items)


def below(items: Iterator[Any]) -> list[generator_states.Below]:
    return generator_states.below([loop(items)], holdings([{}], OWN), OWN)


def gone_back(first: Iterator[Any], second: Iterator[Any]) -> None:
    """Put the states of what `first` goes over where `second` does."""
    tensors: list[torch.Tensor] = []
    packing = Packing(tensors)
    told = [generator_states.told(one.found, packing) for one in below(first)]
    for states, one in zip(told, below(second), strict=True):
        generator_states.put(states, one.found, [tensor.clone() for tensor in tensors])


def permuted() -> Iterator[int]:
    while True:
        order = list(range(7))
        random.shuffle(order)
        yield from order


def unnamed() -> Iterator[int]:
    for _ in range(9):
        for item in random.sample(range(7), 5):
            yield 2 * item


def of_tensors() -> Iterator[torch.Tensor]:
    mean = torch.zeros(2)
    for row in torch.tensor([random.random() for _ in range(12)]):
        mean = 0.5 * mean + row
        yield mean.clone()


def numbered() -> Iterator[tuple[int, int, str]]:
    while True:
        of = {name: random.random() for name in "abcdefg"}
        for number, (one, name) in enumerate(zip(random.sample(range(9), 7), of, strict=True)):
            yield number, one, name


def inner() -> Iterator[int]:
    count = random.randrange(100)
    while True:
        count += 1
        yield count


def nested() -> Iterator[tuple[int, int]]:
    for one in inner():
        yield one, random.randrange(2)


class Counted:
    """An iterator that nothing else leads to."""

    def __init__(self) -> None:
        self.sum = random.randrange(100)

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> int:
        self.sum += 1
        return self.sum


@pytest.mark.parametrize("make", [
    permuted, unnamed, numbered, of_tensors, nested, Counted,
    lambda: (one for one in unnamed()),
])  # fmt: skip
@pytest.mark.parametrize("over", [
    enumerate, lambda one: zip(range(99), one, strict=False), lambda one: map(str, one),
    lambda one: itertools.takewhile(lambda _: True, one),
])  # fmt: skip
@pytest.mark.parametrize("given", [1, 4, 6])
def test_one_that_has_drawn_other_numbers_goes_on_alike(
    make: Callable[[], Iterator[Any]], over: Callable[[Any], Iterator[Any]], given: int
) -> None:
    pair = []
    for seed in (3, 4):
        random.seed(seed)
        pair.append(over(make()))
        for _ in range(given):
            next(pair[-1])

    gone_back(*pair)

    following = []
    for one in pair:
        random.seed(5)
        following.append([next(one) for _ in range(4)])
    assert repr(following[0]) == repr(following[1])


def test_one_that_waits_elsewhere_is_refused() -> None:
    def either(first: bool) -> Iterator[int]:
        if first:
            yield 1
        yield 2

    pair = [either(True), either(False)]
    for one in pair:
        next(one)

    with pytest.raises(NotReachable, match="either does not come to the instruction"):
        gone_back(*pair)


def test_variables_that_its_code_does_not_bind_are_left_out() -> None:
    def over(data: torch.Tensor, held: list[int]) -> Iterator[torch.Tensor]:
        for row in range(3):
            held.append(row)
            yield data[row]

    items = over(torch.zeros(3, 2), [])
    next(items)
    (only,) = below(items)

    ((_, variables, untold, _),) = generator_states.told(only.found, Packing([]))

    assert [name for name, _ in variables] == ["held", "row"]
    assert not untold


def test_what_is_alike_stays_where_it_lies() -> None:
    """A tensor of a model's memory, and a list of them: the generator sees the next update."""
    models = [torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)]

    def over(weight: torch.Tensor) -> Iterator[float]:
        seen, within = weight.detach(), {"weight": weight.detach()}
        while True:
            for one in (weight.detach(), weight.detach()):
                yield float(seen.sum() + within["weight"].sum() + one.sum())

    pair = [over(one) for one in models]
    for one in pair:
        next(one)

    gone_back(*pair)

    with torch.no_grad():
        models[1] += 1
    assert next(pair[1]) == 9.0


@pytest.mark.parametrize("held", [
    torch.zeros(17 << 20), [torch.zeros(1 << 20)] * 17, [numpy.zeros(1 << 20)] * 9,
    {1: ["x" * (33 << 20)] * 2},
])  # fmt: skip
def test_data_are_not_told(held: Any) -> None:
    def over() -> Iterator[int]:
        data = held
        for number, _ in enumerate([data, data]):
            yield number

    items = over()
    next(items)
    (only,) = below(items)
    tensors: list[torch.Tensor] = []

    ((_, variables, untold, _),) = generator_states.told(only.found, Packing(tensors))

    assert variables == [["number", 0]]
    assert {f"generator {over.__qualname__}: items", "_", "data"} <= set(untold)
    assert not tensors
