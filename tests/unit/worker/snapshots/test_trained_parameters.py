"""A process that goes back trains the same parameters in the same groups."""

from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.arrival import plain_values
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.snapshots import trained_parameters
from recoverrun.worker.snapshots.rank_tensors import ModuleNames


class Process:
    """One that has run the first lines of the script: the head is trained, the rest is frozen."""

    def __init__(self) -> None:
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
        self.body.requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.head.parameters(), 0.1)
        self.made = MadeObjects()
        self.made.note_optimizer(self.optimizer)
        variables = {"body": self.body, "head": self.head}
        self.names = ModuleNames(plain_values.holdings([variables], frozenset()))

    def told(self) -> Any:
        return trained_parameters.told(self.made, self.names)

    def put(self, told: Any) -> None:
        trained_parameters.put(told, self.made, self.names)

    def flags(self) -> list[bool]:
        return [one.requires_grad for one in (*self.body.parameters(), *self.head.parameters())]


def test_what_is_unfrozen_meanwhile_is_trained_again() -> None:
    first, second = Process(), Process()
    first.body.requires_grad_(True)
    first.head.bias.requires_grad_(False)
    first.optimizer.add_param_group({"params": list(first.body.parameters())})

    second.put(first.told())

    body, head = list(second.body.parameters()), list(second.head.parameters())
    groups = [group["params"] for group in second.optimizer.param_groups]
    assert second.flags() == first.flags() == [True, True, True, False]
    assert [[id(one) for one in group] for group in groups] == [
        [id(one) for one in head], [id(one) for one in body]
    ]  # fmt: skip
    second.optimizer.load_state_dict(first.optimizer.state_dict())


def test_groups_that_are_lost_are_so_again() -> None:
    first, second = Process(), Process()
    del first.optimizer.param_groups[0]["params"][1]

    second.put(first.told())

    [group] = second.optimizer.param_groups
    assert [id(one) for one in group["params"]] == [id(second.head.weight)]


def test_parameters_that_no_module_has_are_those_of_the_first_lines_or_told() -> None:
    first, second = Process(), Process()
    for one in (first, second):
        one.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    second.put(first.told())

    with pytest.raises(NotReachable, match="no module"):
        Process().put(first.told())


def test_a_model_does_not_go_by_the_variable_of_a_loop() -> None:
    """In another process that may hold another one."""
    models = {"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)}
    names = []
    for name in models:
        variables = {"models": models, "m": models[name]}
        there = plain_values.holdings([variables], frozenset(), last={"m"})
        names.append(ModuleNames(there))

    first, second = (one.parameters() for one in names)
    assert first.keys() == second.keys()
    assert all(first[name] is one for name, one in second.items())
