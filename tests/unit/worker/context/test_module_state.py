"""The state of modules that a re-execution must not leave behind."""

from typing import Any

import pytest
import torch
from torch import nn

from recoverrun.worker.context.module_state import FEW, ModuleStructure, among, untouched


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


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes = self.passes + 1
        return self.norm(x)  # type: ignore[no-any-return]


def test_modules_that_torch_has_compiled_are_left_as_they_were() -> None:
    models = [torch.jit.script(Counting()), torch.jit.trace(nn.BatchNorm1d(4), torch.ones(2, 4))]
    inside = [module for model in models for module in model.modules()]
    before = [buffer.clone() for model in models for buffer in model.buffers()]
    batch = torch.randn(8, 4)

    with untouched(inside, ()) as structure:
        for model in models:
            model(batch)
        among_them = [buffer.clone() for model in models for buffer in model.buffers()]
        assert structure.changed == ""

    assert not all(map(torch.equal, among_them, before))
    after = [buffer for model in models for buffer in model.buffers()]
    assert all(map(torch.equal, after, before))


def test_parameters_are_nobodys_business_here() -> None:
    model = Stateful()
    model.norm.weight.data.fill_(2.0)

    with untouched(among([{"model": model}]), []):
        model.norm.weight.data.fill_(3.0)

    assert model.norm.weight.tolist() == [3.0] * 4


@pytest.mark.parametrize("mode", [True, False])
def test_modules_train_or_rest_as_they_did(mode: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    model.train(mode)
    model[1].train(not mode)

    with untouched(among([{"model": model}]), []):
        model.train(not mode)
        model[1].train(mode)

    assert [one.training for one in model.modules()] == [mode, mode, not mode]


@pytest.mark.parametrize("wanted", [True, False])
def test_parameters_are_frozen_or_trained_as_they_were(wanted: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Stateful())
    model[0].requires_grad_(wanted)

    with untouched(among([{"model": model}]), []):
        model.requires_grad_(not wanted)

    assert [one.requires_grad for one in model[0].parameters()] == [wanted] * 2
    assert all(one.requires_grad for one in model[1].parameters())


def test_they_are_so_after_an_error_too() -> None:
    model = Stateful()

    with pytest.raises(RuntimeError, match="no data"), untouched([model, model.norm], []):
        model.eval().requires_grad_(False)
        raise RuntimeError("no data")

    assert model.training and model.norm.training and model.norm.weight.requires_grad


@pytest.mark.parametrize("kind", [list, tuple])
def test_models_are_found_in_lists(kind: Any) -> None:
    first, second = nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1)

    found = among([{"step": 3, "models": kind([first, None, second, first]), "second": second}])

    assert sorted(map(id, found)) == sorted(map(id, (first, first[0], second)))


def test_long_lists_are_not_looked_into_to_their_end() -> None:
    last = nn.Linear(1, 1)

    assert among([{"models": [None] * (FEW - 1) + [last]}]) == [last]
    assert among([{"models": [None] * FEW + [last]}]) == []


def test_a_backward_that_is_yet_to_come_finds_buffers_as_its_forward_left_them() -> None:
    norm = nn.BatchNorm1d(3)
    loss = norm(torch.randn(4, 3)).square().sum()

    with untouched([norm], norm.buffers()):
        norm(torch.randn(4, 3))
        norm.running_mean.add_(1.0)  # type: ignore[union-attr]

    loss.backward()


def _deepen(model: nn.Sequential) -> None:
    model.append(nn.Linear(4, 4))


def _give_a_parameter(model: nn.Sequential) -> None:
    model[0].scale = nn.Parameter(torch.ones(4))


def _replace_a_part(model: nn.Sequential) -> None:
    model[0] = nn.Linear(4, 2)


@pytest.mark.parametrize("change", [_deepen, _give_a_parameter, _replace_a_part])
def test_modules_that_are_given_other_parts_are_told_and_have_their_own_again(change: Any) -> None:
    """Code that makes a model deeper did so once more for a lost rank, and the survivors trained on
    with a deeper model than others.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before, names = list(model.modules()), [name for name, _ in model.named_parameters()]

    with untouched(among([{"model": model}]), []) as structure:
        told_before = structure.changed
        change(model)
        told = structure.changed

    assert not told_before and "other submodules or parameters" in told
    assert list(model.modules()) == before
    assert [name for name, _ in model.named_parameters()] == names


def test_parameters_that_a_wrapper_takes_away_for_a_pass_are_no_change() -> None:
    model = nn.Linear(4, 4)
    structure = ModuleStructure([model])

    weight = model._parameters.pop("weight")

    assert not structure.changed
    structure.put_back()
    assert weight is not None and "weight" not in model._parameters
