"""Tensors that require a gradient are told wherever an object or a variable keeps them."""

from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch
from torch import nn

from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.object_graph import Holdings, holdings
from recoverrun.worker.snapshots import computed_tensors

Pair = namedtuple("Pair", "h c")

WEIGHTS = torch.ones(3, requires_grad=True)


def there(one: Any) -> Holdings:
    return holdings([{"one": one}], frozenset())


def gone_back(
    change: Callable[[Any], object], make: Callable[[], Any] = SimpleNamespace
) -> tuple[Any, list[Any]]:
    """The same of another process once it has gone back, and the rows that were told."""
    first, second = make(), make()
    change(first)
    packing = Packing([])
    told = computed_tensors.told(there(first), [], frozenset(), packing)
    packed = msgpack.unpackb(msgpack.packb(told), raw=False)
    tensors = [one.detach().clone() for one in packing.tensors]
    computed_tensors.put(packed, tensors, (there(second), []), [], here=())
    return second, told


def test_a_state_with_a_graph_comes_back_without() -> None:
    second, _ = gone_back(
        lambda one: vars(one).update(h=2 * WEIGHTS, both=(3 * WEIGHTS, None, (4 * WEIGHTS,)))
    )

    assert torch.equal(second.h, torch.full((3,), 2.0)) and not second.h.requires_grad
    assert second.both[1] is None and torch.equal(second.both[2][0], torch.full((3,), 4.0))


def test_modules_dicts_and_named_tuples_hold_states_as_well() -> None:
    class Cell(nn.Module):
        h: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[str, Any] = {}

    def change(cell: Cell) -> None:
        cell.h, cell.kept["pair"] = 2 * WEIGHTS, Pair(WEIGHTS + 1, 7)

    second, _ = gone_back(change, Cell)

    assert torch.equal(second.h, torch.full((3,), 2.0))
    assert torch.equal(second.kept["pair"][0], torch.full((3,), 2.0))


def test_a_weight_that_the_script_moves_is_filled_where_it_lies() -> None:
    def make() -> Any:
        weight = torch.zeros(2, requires_grad=True)
        return SimpleNamespace(weight=weight, again=weight)

    def change(one: Any) -> None:
        (3 * one.weight).sum().backward()
        with torch.no_grad():
            one.weight += 5

    second, _ = gone_back(change, make)

    assert second.weight is second.again and second.weight.is_leaf
    assert second.weight.tolist() == [5.0, 5.0] and second.weight.grad.tolist() == [3.0, 3.0]


def test_parameters_and_what_shows_them_come_by_themselves() -> None:
    def change(one: Any) -> None:
        vars(one).update(weight=one.model.weight, part=one.model.weight.split(1)[0])
        one.all = tuple(one.model.parameters())

    _, told = gone_back(change, lambda: SimpleNamespace(model=nn.Linear(2, 2)))

    assert told == []


def test_what_is_as_large_as_activations_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computed_tensors, "MOST_BYTES", 8)

    assert gone_back(lambda one: vars(one).update(h=2 * WEIGHTS))[1] == []
