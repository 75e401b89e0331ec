"""Tuples and sets that are others than before are told as a whole, or end snapshots."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots.whole_values import WholeValues
from tests.unit.ways_back import gone_back

TEXT = """
from collections import namedtuple

import torch

Best = namedtuple("Best", "loss weights")

class Held: pass

class Pair(tuple): pass

class Own:
    def __init__(self):
        self.best, self.pair, self.held = None, (torch.zeros(300, 300), 1), {}

best = None
own = Own()
view = own.pair[0][0]
"""

LARGE = (300, 300)
PUTS: dict[str, Callable[[Any, Any], None]] = {
    "variable": lambda module, value: setattr(module, "best", value),
    "attribute": lambda module, value: setattr(module.own, "best", value),
    "entry": lambda module, value: module.own.held.update(best=value),
    "entry of a new dict": lambda module, value: setattr(module.own, "best", {"best": value}),
}
GETS: dict[str, Callable[[Any], Any]] = {
    "variable": lambda module: module.best,
    "attribute": lambda module: module.own.best,
    "entry": lambda module: module.own.held["best"],
    "entry of a new dict": lambda module: module.own.best["best"],
}


@pytest.mark.parametrize("where", PUTS)
@pytest.mark.parametrize("shape", [(3,), LARGE])
def test_a_new_tuple_of_tensors_and_dicts_is_there_again(
    where: str, shape: tuple[int, ...]
) -> None:
    def train(module: Any) -> None:
        weights = {"weight": torch.full(shape, 2.0)}
        PUTS[where](module, module.Best(0.5, (torch.ones(shape), weights)))

    one, other = gone_back(TEXT, train)

    found = GETS[where](other)
    assert type(found) is one.Best or type(found).__name__ == "Best"
    assert found.loss == 0.5
    assert torch.equal(found.weights[0], torch.ones(shape))
    assert torch.equal(found.weights[1]["weight"], torch.full(shape, 2.0))


def test_tensors_of_a_tuple_that_stays_change_where_they_lie() -> None:
    _, other = gone_back(TEXT, lambda module: module.own.pair[0].add_(3))

    assert other.own.pair[0].sum() == 3 * 300 * 300
    assert other.view.data_ptr() == other.own.pair[0].data_ptr()


def test_another_figure_beside_a_tensor_is_there_again() -> None:
    def train(module: Any) -> None:
        module.own.pair = module.own.pair[0], 2

    _, other = gone_back(TEXT, train)

    assert other.own.pair[1] == 2


@pytest.mark.parametrize("where", PUTS)
@pytest.mark.parametrize(
    "make",
    [
        lambda one: (one.Held(), 1),
        lambda one: {one.Held()},
        lambda one: frozenset([one.Held()]),
        lambda one: {(1, 2): one.Held()},
        lambda one: one.Pair((1, 2)),
    ],
)
def test_what_holds_objects_cannot_be_told(make: Callable[[Any], Any], where: str) -> None:
    with pytest.raises(
        NotReachable, match="has changed since the run began, and .* a (Held|Pair) cannot"
    ):
        gone_back(TEXT, lambda module: PUTS[where](module, make(module)))


def test_what_code_between_loops_made_is_told_of_once_it_should_have_been_made_anew() -> None:
    variables: dict[str, Any] = {"pair": None}
    packing, spaces = Packing([]), [("<main>", variables)]
    whole = WholeValues(holdings([variables], frozenset()), spaces)

    def told(epoch: int) -> Any:
        loop = SimpleNamespace(iteration=epoch, loop=SimpleNamespace(rebinds=frozenset()))
        held = holdings([variables], frozenset()), spaces
        stack: Any = [loop, loop]
        return whole.told(held, stack, packing, whole=set(), passed=lambda path: False)

    variables["pair"] = (object(), 1)

    assert told(0) == told(0) == ([], [])
    with pytest.raises(NotReachable):
        told(1)
    variables["pair"] = (object(), 1)
    assert told(1) == ([], [])


@pytest.mark.parametrize("where", PUTS)
def test_the_shape_of_a_tensor_is_there_again(where: str) -> None:
    _, other = gone_back(TEXT, lambda module: PUTS[where](module, torch.ones(3, 4).shape))

    assert GETS[where](other) == torch.Size((3, 4)) and type(GETS[where](other)) is torch.Size
