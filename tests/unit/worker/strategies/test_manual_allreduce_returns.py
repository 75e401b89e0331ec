"""A process that comes later reduces by hand as those do that have seen the first step."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from recoverrun.worker.errors import NotReachable
from recoverrun.worker.step.interfaces import StrategyHost
from recoverrun.worker.strategies.manual_allreduce import ManualAllReduce
from tests.unit.strategy_hosts import Host


class Script:
    """Reduces its gradients by hand, flat, and divides them before."""

    def __init__(self) -> None:
        self.host = Host()
        self.strategy = ManualAllReduce(cast("StrategyHost", self.host))
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        self.optimizer = SimpleNamespace(param_groups=[{"params": [*self.model.parameters()]}])
        self.strategy.add_param_group(lambda optimizer: None)(self.optimizer)
        self.all_reduce = self.strategy.all_reduce(lambda *_: None)

    def backward(self) -> None:
        self.model(torch.randn(4, 3).double()).sum().backward()
        self.strategy.backward_done()

    def step(self) -> None:
        self.backward()
        gradients = [param.grad for param in self.model.parameters()]
        self.all_reduce(torch.cat([one.view(-1) for one in gradients if one is not None]) / 4)
        for one in gradients:
            assert one is not None
            one /= 4
        self.strategy.stepping()


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)


@pytest.mark.usefixtures("together")
def test_how_a_script_reduces_by_hand_can_be_told() -> None:
    there, here = Script(), Script()
    there.step()
    assert there.host.watching is there.strategy
    assert there.host.worker.strategy is there.strategy, "its first step was seen"
    plan = there.strategy.plan()

    here.host.worker.strategy, here.host.worker.machine = here.strategy, object()
    here.strategy.adopt(cast("Any", plan))

    assert here.strategy.plan() == plan
    assert here.host.reducer.sizes == there.host.reducer.sizes
    assert here.strategy.terms == there.strategy.terms == "0.25 True"
    assert here.strategy.roots() == [here.model]
    assert set(here.strategy.parameters()) == set(there.strategy.parameters())
    here.backward()
    flat = torch.cat([p.grad.view(-1) for p in here.model.parameters() if p.grad is not None]) / 4
    with pytest.raises(KeyError):  # it is the commit point: nothing was reduced here
        here.all_reduce(flat)
    assert here.host.reducer.order == list(here.host.reducer.buckets)


@pytest.mark.usefixtures("together")
def test_other_optimizers_are_another_way() -> None:
    there, here = Script(), Script()
    there.step()
    plan = cast("Any", there.strategy.plan())
    here.optimizer.param_groups[0]["params"].pop()

    with pytest.raises(NotReachable, match="given 5 parameters to optimizers, others 6"):
        here.strategy.adopt(plan)
