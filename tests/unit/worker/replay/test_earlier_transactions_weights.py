"""Parameters that re-executed code may change are what they are."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recoverrun.worker.replay.earlier_transactions import Weights, trained


def test_parameters_of_all_groups_and_optimizers_are_trained() -> None:
    params = parameters(4)
    one = torch.optim.SGD([params[0]], 0.1)
    one.add_param_group({"params": params[1:3]})

    found = trained([one, torch.optim.SGD(params[3:], 0.1)])

    assert [id(param) for param in found] == [id(param) for param in params]


def parameters(count: int = 3) -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(2.0) + n) for n in range(count)]


def values(params: list[nn.Parameter]) -> list[list[float]]:
    return [param.detach().tolist() for param in params]


def add(param: Tensor) -> None:
    with torch.no_grad():
        param.add_(1.0)


def write_through_data(param: Tensor) -> None:
    param.data.add_(1.0)


def put_data_in_place(param: Tensor) -> None:
    param.data = param.detach() + 1.0


WRITES = {
    "in place": add,
    "through .data": write_through_data,
    "other .data": put_data_in_place,
}


@pytest.mark.parametrize("write", WRITES)
def test_parameters_are_restored_to_what_they_were(write: str) -> None:
    params = parameters()
    before, weights = values(params), Weights(params)

    for _ in range(2):
        for param in params:
            WRITES[write](param)
        assert values(params) != before
        weights.restore()

        assert values(params) == before


@pytest.mark.parametrize("write", WRITES)
def test_parameters_stay_the_same_objects_in_the_same_memory(write: str) -> None:
    """Optimizers have the ones; buckets and views of the script have the other."""
    params = parameters()
    weights = Weights(params)
    kept = [(id(one), one.data_ptr(), one.requires_grad, one.is_leaf) for one in params]

    with weights.held():
        for param in params:
            WRITES[write](param)

    assert [(id(one), one.data_ptr(), one.requires_grad, one.is_leaf) for one in params] == kept


def raising() -> None:
    raise ValueError("no data")


@pytest.mark.parametrize("end", [lambda: None, raising], ids=["", "after an exception"])
@pytest.mark.parametrize("write", WRITES)
def test_parameters_that_are_held_are_restored_afterwards(
    write: str, end: Callable[[], None]
) -> None:
    params = parameters()
    before = values(params)

    try:
        with Weights(params).held():
            for param in params:
                WRITES[write](param)
            end()
    except ValueError:
        assert end is raising

    assert values(params) == before


class Graph:
    """Of a loss that is not backward yet, whose gradients need the parameters as they were."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        self.params = list(self.model.parameters())
        self.loss = self.model(torch.ones(1, 2)).sum()

    def gradients(self) -> list[list[float]]:
        return [one.flatten().tolist() for one in torch.autograd.grad(self.loss, self.params)]


@pytest.mark.usefixtures("streams_put_back")
@pytest.mark.parametrize("end", [lambda: None, raising], ids=["", "after an exception"])
@pytest.mark.parametrize("write", WRITES)
def test_a_graph_that_the_script_keeps_can_still_go_backward(
    write: str, end: Callable[[], None]
) -> None:
    expected, graph = Graph().gradients(), Graph()
    versions = [param._version for param in graph.params]
    weights = Weights(graph.params)

    try:
        with weights.held():
            for param in graph.params:
                WRITES[write](param)
            weights.restore()
            end()
    except ValueError:
        assert end is raising

    assert [param._version for param in graph.params] == versions
    assert graph.gradients() == expected


@pytest.mark.usefixtures("streams_put_back")
@pytest.mark.parametrize("write", ["through .data", "other .data"])
def test_two_forwards_go_backward_together_after_parameters_were_restored_before_each(
    write: str,
) -> None:
    """Code that writes where autograd sees it has its own backward complain."""
    graph, expected = Graph(), [[2 * one for one in row] for row in Graph().gradients()]
    weights = Weights(graph.params)

    with weights.held():
        losses = []
        for _ in range(2):
            for param in graph.params:
                WRITES[write](param)
            weights.restore()
            losses.append(graph.model(torch.ones(1, 2)).sum())
        graph.loss = losses[0] + losses[1]
        found = graph.gradients()

    assert found == expected


@pytest.mark.usefixtures("streams_put_back")
def test_a_graph_over_parameters_that_nobody_held_is_lost() -> None:
    """The counterpart: without it the tests above show nothing."""
    graph = Graph()
    weights = Weights(graph.params)
    for param in graph.params:
        add(param)  # counted
    weights.restore()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        graph.gradients()
