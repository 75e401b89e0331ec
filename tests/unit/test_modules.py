"""What a re-execution must not leave behind in modules."""

from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.hooks.modules import among, untouched


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4))
        self.hidden: Any = torch.ones(4)
        self.seen: list[int] = [1]
        self.kinds: dict[str, int] = {"a": 1}

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(x)


def _state(module: Stateful) -> list[Any]:
    tensors = [t for t in (*module.buffers(), module.hidden) if t is not None]
    known = {n: v for n, v in vars(module).items() if not n.startswith("_")}
    return [[t.tolist() for t in tensors], list(module.seen), dict(module.kinds), sorted(known)]


def _run(module: Stateful) -> None:
    module(torch.randn(8, 4))


def _replace_buffer(module: Stateful) -> None:
    module.mean = module.mean + 1


def _replace_attribute(module: Stateful) -> None:
    module.hidden = None


def _in_place(module: Stateful) -> None:
    module.hidden.add_(1)


def _containers(module: Stateful) -> None:
    module.seen.append(2)
    module.kinds["b"] = 2


def _new_attribute(module: Stateful) -> None:
    module.loss = torch.zeros(())


@pytest.mark.parametrize(
    "change", [_run, _replace_buffer, _replace_attribute, _in_place, _containers, _new_attribute]
)
def test_modules_are_left_as_they_were(change: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Stateful())
    inner = model[1]
    assert isinstance(inner, Stateful)
    before, hidden, mean = _state(inner), inner.hidden, inner.mean

    with untouched(among([{"model": model, "step": 3}]), []):
        change(inner)
        assert _state(inner) != before

    assert _state(inner) == before
    assert inner.hidden is hidden and inner.mean is mean


def test_parameters_are_nobodys_business_here() -> None:
    model = Stateful()
    model.norm.weight.data.fill_(2.0)

    with untouched(among([{"model": model}]), []):
        model.norm.weight.data.fill_(3.0)

    assert model.norm.weight.tolist() == [3.0] * 4
