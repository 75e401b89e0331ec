"""Momenta and slow weights in dicts of the script's, whose keys are its parameters."""

from collections import defaultdict
from typing import Any

import torch

from recoverrun.worker.arrival import loose_values, plain_values, values_by_parameter
from recoverrun.worker.arrival.packing import Packing
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.object_graph import Holdings, holdings

NONE: frozenset[str] = frozenset()


class Process:
    """Two parameters, and what its script holds."""

    def __init__(self) -> None:
        self.params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        self.velocity: dict[Any, Any] = {one: torch.zeros(2) for one in self.params}
        self.slow: Any = defaultdict(dict)  # without a name of its own
        self.made = MadeObjects()

    @property
    def there(self) -> Holdings:
        return holdings([{"velocity": self.velocity, "slow": self.slow}], NONE)

    def trained(self) -> None:
        for number, one in enumerate(self.params):
            self.velocity[one] += 1 + number
            self.slow[one]["weights"] = torch.full((2,), 5.0 + number)

    def told(self, packing: Packing) -> list[Any]:
        return values_by_parameter.told(self.there, self.made, packing)

    def packing(self) -> Packing:
        return Packing([], self.params)


def test_a_fresh_process_has_the_values_of_its_own_parameters() -> None:
    there, here = Process(), Process()
    packing = there.packing()
    there.trained()
    velocity, slow = here.velocity, here.slow

    values_by_parameter.put(here.there, [*here.params], there.told(packing), packing.tensors)

    assert [here.velocity[one].tolist() for one in here.params] == [[1.0, 1.0], [2.0, 2.0]]
    weights = [here.slow[one]["weights"].tolist() for one in here.params]
    assert weights == [[5.0, 5.0], [6.0, 6.0]], "made as the script trained"
    assert [*here.velocity] == [*here.slow] == here.params, "and nothing else"
    assert (here.velocity, here.slow) == (velocity, slow), "which the script may hold"


def test_the_number_of_a_parameter_is_that_of_each_process() -> None:
    there, here = Process(), Process()
    packing = there.packing()
    for one in (there, here):
        one.velocity = {id(param): torch.zeros(2) for param in one.params}
    for number, param in enumerate(there.params):
        there.velocity[id(param)] += 1 + number
        there.slow[id(param)] = {"weights": torch.full((2,), 5.0 + number), "updates": 7}
    there.velocity["mean"] = 0.5

    values_by_parameter.put(here.there, [*here.params], there.told(packing), packing.tensors)

    numbers = [id(one) for one in here.params]
    assert [here.velocity[one].tolist() for one in numbers] == [[1.0, 1.0], [2.0, 2.0]]
    assert [here.slow[one]["weights"].tolist() for one in numbers] == [[5.0, 5.0], [6.0, 6.0]]
    assert [*here.slow] == numbers and [*here.velocity] == [*numbers, "mean"], "and no others"
    told = plain_values.pack(plain_values.changed(there.there, {}), packing)
    loose = loose_values.changed_in_place(
        there.there, (), before={}, bound=NONE, data=frozenset(), packing=packing
    )
    keys = {key for _, key, *_ in told} | {key for _, key, _ in loose}
    assert keys.isdisjoint({id(one) for one in there.params}), "nor under the numbers of the donor"


def test_the_state_of_an_optimizer_comes_with_the_optimizer() -> None:
    there = Process()
    packing = there.packing()
    optimizer = torch.optim.SGD(there.params, lr=0.1, momentum=0.9)
    there.made.note_optimizer(optimizer)
    there.velocity = optimizer.state
    for one in there.params:
        one.grad = torch.ones(2)
    optimizer.step()

    assert there.told(packing) == []


def test_a_dict_by_other_tensors_stays_where_it_is() -> None:
    there = Process()
    packing = there.packing()
    there.velocity, there.slow = {torch.ones(2): 1}, {there.params[0]: 1, torch.ones(2): 2}

    assert there.told(packing) == []


def test_what_cannot_travel_is_the_process_s_own() -> None:
    there, here = Process(), Process()
    packing = there.packing()
    there.trained()
    layer = here.velocity[here.params[1]] = torch.nn.Linear(1, 1)
    there.velocity[there.params[1]] = torch.nn.Linear(1, 1)

    values_by_parameter.put(here.there, [*here.params], there.told(packing), packing.tensors)

    assert here.velocity[here.params[0]].tolist() == [1.0, 1.0]
    assert here.velocity[here.params[1]] is layer
