"""Elements are put where a tensor lies, also where a parameter is no part of a module."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.arrival.elements import fill_elements
from tests.unit.newcomers import Variables, arrives
from tests.unit.ways_back import gone_back

TEXT = """
import copy
import torch
from torch import nn

class Own: pass

model, own = nn.Linear({size}, {size}), Own()
own.slow = [one.requires_grad_(False) for one in copy.deepcopy(list(model.parameters()))]
own.fast = nn.Parameter(torch.zeros({size}, {size}), requires_grad=False)
own.view = own.fast.view(-1)
"""


@pytest.mark.parametrize("size", [2, 300])
def test_averages_in_parameters_that_are_not_trained_come_back(size: int) -> None:
    def train(module: Any) -> None:
        for one in module.own.slow:
            one.fill_(2)
        module.own.fast.fill_(3)
        module.own.late = nn.Parameter(torch.full((size, size), 4.0), requires_grad=False)

    _, other = gone_back(TEXT.format(size=size), train)

    own = other.own
    assert all(bool((one == 2).all()) for one in own.slow) and bool((own.fast == 3).all())
    assert type(own.fast) is nn.Parameter and bool((own.view == 3).all())
    assert bool((own.late == 4).all())


@pytest.mark.parametrize("size", [2, 300])
def test_a_newcomer_has_them_too(size: int) -> None:
    def make() -> Variables:
        torch.manual_seed(1)
        model = nn.Linear(size, size)
        slow = copy.deepcopy(list(model.parameters()))
        return {"slow": {number: one.requires_grad_(False) for number, one in enumerate(slow)}}

    def change(variables: Variables) -> None:
        for one in variables["slow"].values():
            one.fill_(2)

    _, newcomer = arrives(make, change)

    for one in newcomer["slow"].values():
        assert type(one) is nn.Parameter and bool((one == 2).all())


def test_a_parameter_that_is_trained_takes_no_elements_of_another_tensor() -> None:
    trained = nn.Parameter(torch.zeros(2))

    assert not fill_elements(trained, torch.ones(2))
    assert fill_elements(trained.detach(), torch.ones(2)) and trained.tolist() == [1.0, 1.0]
