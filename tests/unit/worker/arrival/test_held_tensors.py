"""The tensors of a process that are told, each once, and by what name."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from recoverrun.worker.arrival import held_tensors
from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.context.object_graph import holdings
from recoverrun.worker.errors import NotReachable
from recoverrun.worker.step.strategy import Strategy


def serving(parameters: dict[str, torch.Tensor], *roots: nn.Module) -> Strategy:
    made: Any = SimpleNamespace(parameters=lambda: parameters, roots=lambda: list(roots))
    return cast("Strategy", made)


def test_a_view_of_what_is_trained_is_not_told_again() -> None:
    """As FSDP1 shows parts of its flat parameters."""
    flat = torch.zeros(10)
    net, average = nn.Linear(3, 2), nn.Linear(3, 2)
    net.weight = nn.Parameter(flat[2:8].view(2, 3))
    net.bias = nn.Parameter(flat[8:10])
    there = holdings([{"net": net, "average": average}], frozenset())

    found = held_tensors.others(serving({"flat": flat}, net), MadeObjects(), there)

    assert sorted(found) == ["average.bias", "average.weight"]


def test_what_is_trained_beside_the_model_is_told_once() -> None:
    """Master copies of its parameters, in a type of their own."""
    net = nn.Linear(3, 2, dtype=torch.bfloat16)
    masters = [one.detach().float().requires_grad_() for one in net.parameters()]
    made = MadeObjects()
    optimizers = [
        torch.optim.SGD(params, lr=0.1) for params in (masters, [*net.parameters(), masters[0]])
    ]
    for one in optimizers:
        made.note_optimizer(one)

    found = held_tensors.beside(serving(dict(net.named_parameters()), net), made)

    assert list(found) == ["parameter 0", "parameter 1"]
    assert [one.data_ptr() for one in found.values()] == [one.data_ptr() for one in masters]


def test_buffers_of_what_is_trained_have_the_order_of_its_modules() -> None:
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(3)
    strategy = serving({"0": first.weight, "1": second.weight}, second, first)

    found = held_tensors.model(strategy)

    assert [one.numel() for name, one in found.items() if name.startswith("buffer")] == [
        3, 3, 1, 2, 2, 1,
    ]  # fmt: skip
    mean = second.running_mean
    assert mean is not None
    assert found["buffer 0"].data_ptr() == mean.data_ptr()


class Average:
    def __init__(self) -> None:
        self.ema = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2)))


def test_a_tensor_tells_of_which_module_it_is_and_which_is_around_that() -> None:
    there = holdings([{"average": Average(), "teacher": nn.Linear(3, 2)}], frozenset({__name__}))

    found = held_tensors.others(serving({}), MadeObjects(), there)

    assert {held_tensors.outermost(name) for name in found} == {"average.ema", "teacher"}
    assert {held_tensors.path_of(name) for name in found} <= {path for path, _ in there.modules}


def test_a_newcomer_unfreezes_what_others_have_unfrozen() -> None:
    there, here = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    for net in (there, here):
        net[0].requires_grad_(False)
    there[0].weight.requires_grad_(True)
    there[1].bias.requires_grad_(False)

    told = held_tensors.with_gradients(serving({}, there))
    held_tensors.unfreeze(serving({}, here), told)

    assert [one.requires_grad for one in here.parameters()] == [True, False, True, False]


def test_another_model_is_not_unfrozen() -> None:
    told = held_tensors.with_gradients(serving({}, nn.Sequential(nn.Linear(2, 2))))

    with pytest.raises(NotReachable, match=r"0\.weight, a parameter of others' model"):
        held_tensors.unfreeze(serving({}, nn.Linear(2, 2)), told)
    with pytest.raises(NotReachable, match="this process trains 1 models, others 0"):
        held_tensors.unfreeze(serving({}, nn.Linear(2, 2)), [])


def test_a_parameter_that_torch_keeps_as_an_attribute_is_there() -> None:
    """As DDP does beside tensor parallelism, on one side or on both."""
    there, here = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    localized = there[0].weight.detach()
    there[0].weight.requires_grad_(False)
    here[1].bias.requires_grad_(False)
    for one in (there[1], here[0]):
        del one._parameters["weight"]
        one.weight = localized

    told = held_tensors.with_gradients(serving({}, there))
    held_tensors.unfreeze(serving({}, here), told)

    assert all(one.requires_grad for one in here.parameters())
    assert [name for name, _ in told[0]] == ["0.weight", "0.bias", "1.bias"]
