"""Optimizers are known as they are made, and those that divide their state are refused then."""

import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.context.made_objects import MadeObjects
from recoverrun.worker.patches import optimizer_hooks
from recoverrun.worker.patches.optimizer_hooks import DIVIDED

ZERO = "torch.distributed.optim.zero_redundancy_optimizer"


class Script:
    """Makes optimizers whose constructors are replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusals: list[str] = []
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        parts: Any = SimpleNamespace(
            executor=SimpleNamespace(optimizers=self.optimizers),
            made=MadeObjects(),
            worker=SimpleNamespace(refuse=self.refusals.append),
        )
        replaced = optimizer_hooks.knowing(parts, torch.optim.Optimizer.add_param_group)

        class Whole(torch.optim.SGD):
            add_param_group = replaced

        class ZeroRedundancyOptimizer(torch.optim.SGD):
            """Divides its state among ranks, and knows that only when it is made to its end."""

            add_param_group = replaced

            def __init__(self, params: Any, **options: Any) -> None:
                super().__init__(params, **options)
                raise LookupError("no process group")

        self.whole, self.divided = Whole, ZeroRedundancyOptimizer
        self.zero = ModuleType(ZERO)
        vars(self.zero).update(ZeroRedundancyOptimizer=ZeroRedundancyOptimizer)
        monkeypatch.delitem(sys.modules, ZERO, raising=False)

    def make(self, kind: Any) -> Any:
        return kind([nn.Parameter(torch.ones(1))], lr=0.1)


def test_one_that_divides_its_state_is_refused_as_soon_as_it_has_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is promised: not when it steps, and not when it is made to its end."""
    script = Script(monkeypatch)
    monkeypatch.setitem(sys.modules, ZERO, script.zero)

    with pytest.raises(LookupError):
        script.make(script.divided)

    assert script.refusals == [DIVIDED]


def test_one_that_is_whole_is_known_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    monkeypatch.setitem(sys.modules, ZERO, script.zero)

    made = script.make(script.whole)

    assert list(script.optimizers) == [made] and script.refusals == []


def test_where_nobody_has_imported_those_that_divide_none_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script(monkeypatch)

    made = script.make(script.whole)

    assert ZERO not in sys.modules, "nor do we"
    assert list(script.optimizers) == [made] and script.refusals == []


def test_groups_are_added_as_torch_adds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    made, late = script.make(script.whole), nn.Parameter(torch.ones(2))

    made.add_param_group({"params": [late], "lr": 0.5})

    assert [group["lr"] for group in made.param_groups] == [0.1, 0.5]
    assert made.param_groups[1]["params"][0] is late and len(script.optimizers) == 1
    with pytest.raises(ValueError, match="more than one parameter group"):
        made.add_param_group({"params": [late]})
