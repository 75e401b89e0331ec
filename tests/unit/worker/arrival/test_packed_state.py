"""The script's iterators, optimizers and schedulers, as a newcomer is told of them."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.arrival.contents import PackedState
from recoverrun.worker.arrival.iterator_places import HeldIterator
from recoverrun.worker.arrival.packed_state import (
    _iterators,
    _states,
    constants_outside,
)
from recoverrun.worker.arrival.packing import CannotTravel, Packing, unpack
from recoverrun.worker.arrival.placing import put_iterators
from tests.unit.worker.arrival.test_iterator_places import a_loader_iterator, advanced, ahead

OWN = frozenset({__name__})


class Trainer:
    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches


def test_a_generator_that_an_attribute_holds_is_told_by_its_path_and_brought_there() -> None:
    trainer = Trainer(advanced(ahead(a_loader_iterator(5)), 2))
    told = [one for one in _iterators(sys._getframe(), OWN) if one[0] == ["trainer", "batches"]]
    held: list[tuple[HeldIterator, Any]] = []

    def hold(one: HeldIterator, present: Any, visible: Any) -> Any:
        held.append((one, present))
        return present

    put_iterators(PackedState({"iterators": [told]}, []), [sys._getframe()], hold)

    assert [(one.over, one.given, present) for one, present in held] == [(5, 3, trainer.batches)]


class Warming(torch.optim.lr_scheduler.LambdaLR):
    """Its state has a function that its constructor makes."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "warms": lambda step: step}


def made(**kinds: Any) -> Any:
    return SimpleNamespace(
        made=SimpleNamespace(names=lambda: list(kinds), of=lambda name: [kinds[name]])
    )


def test_a_function_in_the_state_of_a_scheduler_is_the_newcomers_own() -> None:
    schedule = Warming(torch.optim.SGD([torch.ones(2)], lr=0.1), lambda step: 1.0)
    packing = Packing([])

    (told,) = _states(made(schedulers=schedule), packing)["schedulers"]

    assert unpack(told, packing.tensors).keys() == schedule.state_dict().keys() - {"warms"}


@pytest.mark.parametrize("key", ["state", "param_groups"])
def test_the_state_of_an_optimizer_travels_whole_or_nobody_comes_back(key: str) -> None:
    optimizer = torch.optim.SGD([param := torch.ones(2)], lr=0.1)
    held: Any = optimizer.state[param] if key == "state" else optimizer.param_groups[0]
    held["odd"] = (one for one in "abc")

    with pytest.raises(CannotTravel, match="the state of a SGD.*a generator"):
        _states(made(optimizers=optimizer), Packing([]))


def test_what_iterations_make_for_themselves_is_no_constant_for_a_newcomer() -> None:
    """A Trainer fetches the batches of an update in the loop around."""
    told = [["batches[0].ids", "seed"], [[0, [1, 2]], [1, [3, 4]]], ["batches[1]", "rows"]]

    assert constants_outside(told, frozenset({"batches"})) == [
        ["seed"], [[0, [2]], [1, [4]]], ["rows"]
    ]  # fmt: skip
