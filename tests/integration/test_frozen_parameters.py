"""Gradients of parameters that are frozen, and those that are views of a sharded one."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.ddp import Ddp
from recoverrun.worker.strategies.ddp_module import DdpModule
from recoverrun.worker.strategies.fsdp1 import Flat, Fsdp1
from tests.unit.strategy_hosts import Host


class Wrapped(nn.Module):
    """As much of DDP as its gradients need."""

    def __init__(self, *frozen: int) -> None:
        super().__init__()
        self.module = nn.Sequential(*(nn.Linear(2, 1, bias=False) for _ in range(3)))
        for place in frozen:
            self.module[place].requires_grad_(False)
        self._module_parameters, self.process_group = list(self.parameters()), None

    def given(self, *values: float) -> list[torch.Tensor]:
        for param, value in zip(self.parameters(), values, strict=True):
            param.grad = torch.full((1, 2), float(value))
        return [param.grad for param in self.parameters() if param.grad is not None]


def served(wrapped: Wrapped) -> tuple[Ddp, DdpModule]:
    host = cast("StrategyHost", Host())
    ddp, one = Ddp(host), DdpModule(host, cast("Any", wrapped))
    ddp._modules = [one]
    return ddp, one


# --------------------------------------------------------------------------- DDP


@pytest.mark.parametrize("frozen", [(), (0,), (0, 1, 2)])
def test_gradients_of_frozen_parameters_are_set_aside_too_and_come_back(
    frozen: tuple[int, ...],
) -> None:
    wrapped = Wrapped(*frozen)
    ddp, _ = served(wrapped)
    before = wrapped.given(1, 2, 3)

    kept = ddp.set_aside()

    assert [param.grad for param in wrapped.parameters()] == [None] * 3
    wrapped.given(7, 8, 9)
    ddp.put_back(kept)
    assert all(p.grad is own for p, own in zip(wrapped.parameters(), before, strict=True))


def test_a_parameter_that_code_begins_to_train_meanwhile_has_no_gradient_afterwards() -> None:
    wrapped = Wrapped(0)
    ddp, _ = served(wrapped)

    kept = ddp.set_aside()
    wrapped.requires_grad_(True)
    wrapped.given(1, 2, 3)
    ddp.put_back(kept)

    assert [param.grad for param in wrapped.parameters()] == [None] * 3


def test_one_that_was_trained_as_the_transaction_began_is_known_though_it_is_hidden_now() -> None:
    """A tensor-parallel module shows its parameters until its forward."""
    wrapped = Wrapped()
    ddp, _ = served(wrapped)
    hidden = list(wrapped.parameters())
    before = wrapped.given(1, 2, 3)
    wrapped.module = nn.Sequential()

    ddp.put_back(ddp.set_aside())

    assert [param.grad is own for param, own in zip(hidden, before, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("frozen", "written", "complete"),
    [
        ((), (0, 1, 2), True), ((), (0, 1), False), ((0,), (1, 2), True), ((0,), (1,), False),
        ((0, 1, 2), (), False), ((), (), False),
    ],
)  # fmt: skip
def test_a_backward_is_complete_once_all_that_is_trained_has_a_gradient(
    frozen: tuple[int, ...], written: tuple[int, ...], complete: bool
) -> None:
    """A model that is frozen as a whole has nothing that DDP would reduce."""
    wrapped = Wrapped(*frozen)
    _, one = served(wrapped)
    one.still = one._armed = True
    one.backward_begins()

    for place in written:
        wrapped.module[place].weight.grad = torch.ones(1, 2)

    assert one._complete() == complete


# --------------------------------------------------------------------------- FSDP1


class Handle:
    """torch's: parameters' gradients are views of the sharded one once it has made them so."""

    def __init__(self, original: bool, size: int = 4) -> None:
        self._use_orig_params = original
        self.flat_param = nn.Parameter(torch.zeros(size))
        self.flat_param.grad = torch.arange(float(size))
        self.views: list[torch.Tensor] = []

    def _use_sharded_grad_views(self) -> None:
        gradient = self.flat_param.grad
        self.views = [] if gradient is None else list(gradient.chunk(2))


def fsdp(handle: Handle) -> tuple[Fsdp1, Flat]:
    strategy = Fsdp1(cast("StrategyHost", object()))
    flat = Flat(handle.flat_param, handle, 2.0)
    strategy._flat[id(handle.flat_param)] = flat
    return strategy, flat


@pytest.mark.parametrize("original", [True, False])
def test_gradients_are_shown_as_views_where_parameters_are_the_original_ones(
    original: bool,
) -> None:
    handle = Handle(original)
    _, flat = fsdp(handle)

    flat.show()

    assert [one.tolist() for one in handle.views] == ([[0.0, 1.0], [2.0, 3.0]] if original else [])


@pytest.mark.parametrize("replaced", [False, True], ids=["in place", "by another one"])
def test_gradients_that_are_put_back_are_what_parameters_show(replaced: bool) -> None:
    handle = Handle(True)
    strategy, flat = fsdp(handle)
    flat.accumulator = torch.ones(4)
    kept = strategy.set_aside()
    gradient = handle.flat_param.grad
    assert flat.accumulator is None and gradient is not None
    if replaced:
        handle.flat_param.grad = torch.full((4,), 9.0)
    else:
        gradient.fill_(9.0)
    handle.views = [torch.zeros(1)]  # of a part, as torch left them

    strategy.put_back(kept)

    assert [one.tolist() for one in handle.views] == [[0.0, 1.0], [2.0, 3.0]]
    assert flat.accumulator is not None and flat.accumulator.tolist() == [1.0] * 4
