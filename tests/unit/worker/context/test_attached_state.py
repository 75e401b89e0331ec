"""Hooks of the script, and what it writes to modules of torch, are looked at."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from recoverrun.worker.context import attached_state as attached_module
from recoverrun.worker.context import object_members as members_module
from recoverrun.worker.context.attached_state import MOST, Attached, hooking, writing
from recoverrun.worker.context.namespaces import module_paths
from recoverrun.worker.context.object_members import members
from recoverrun.worker.context.slot_context import attributes_of

OWN = frozenset({__name__})


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, gradient: Any) -> None:
        self.calls += 1

    def method(self, *_: Any) -> None:
        self.calls += 10


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attached]:
    """A registry of the test's own, which torch's classes tell."""
    own = Attached()
    monkeypatch.setattr(attached_module, "ATTACHED", own)
    monkeypatch.setattr(members_module, "ATTACHED", own)
    monkeypatch.setattr(torch.Tensor, "register_hook", hooking(torch.Tensor.register_hook))
    forward = hooking(nn.Module.register_forward_hook)
    monkeypatch.setattr(nn.Module, "register_forward_hook", forward)
    monkeypatch.setattr(nn.Module, "__setattr__", writing(nn.Module.__setattr__))
    yield own


def found(own: Attached) -> dict[str, Any]:
    return {".".join(path): value for path, value in attributes_of(own.names(), OWN).items()}


def test_what_a_hook_counts_is_seen_and_can_be_put_elsewhere(own: Attached) -> None:
    layer = nn.Linear(1, 1)
    layer.weight.register_hook(Counting())
    layer.register_forward_hook(Counting().method)

    layer(torch.ones(1)).backward()
    seen = found(own)
    members(own.names()["hook 0"])["calls"] = 7

    assert seen == {"hook 0.calls": 1, "hook 1.calls": 10}
    assert found(own)["hook 0.calls"] == 7


def test_hooks_of_what_is_computed_or_of_libraries_are_left_alone(own: Attached) -> None:
    weight = torch.ones(1, requires_grad=True)
    (2 * weight).register_hook(Counting())
    weight.register_hook(functional.relu)

    assert own.names() == {}


def test_one_hook_is_one_object_however_often_it_is_used(own: Attached) -> None:
    hook = Counting()
    for param in nn.Linear(1, 1).parameters():
        param.register_hook(hook)

    assert list(own.names()) == ["hook 0"]


@pytest.mark.parametrize("training", [False, True])
def test_what_is_written_to_a_module_is_seen_once_training_has_begun(
    own: Attached, training: bool
) -> None:
    loss, layer = nn.CrossEntropyLoss(), nn.Linear(1, 1)
    layer.register_buffer("seen", torch.zeros(1))
    own.training = training

    loss.label_smoothing = 0.25
    layer.seen += 3
    layer.eval()

    expected = {"module 0.label_smoothing": 0.25, "module 1.seen": torch.tensor([3.0])}
    assert found(own) == (expected if training else {})


def test_an_attribute_or_a_buffer_is_given_another_value(own: Attached) -> None:
    layer = nn.Linear(1, 1)
    layer.register_buffer("seen", torch.zeros(1))
    own.training = True
    layer.seen, layer.scale = torch.ones(1), 2.0

    held = members(layer)
    held["seen"], held["scale"] = torch.full((1,), 5.0), 3.0

    assert (float(layer.seen), layer.scale) == (5.0, 3.0)
    assert "seen" in layer._buffers and sorted(held) == ["scale", "seen"]
    assert "weight" not in held and len(held) == 2


def test_wrappers_keep_books_of_their_own(own: Attached) -> None:
    wrapper = nn.DataParallel(nn.Linear(1, 1))
    own.training = True

    wrapper.steps = 3

    assert own.names() == {}


def test_of_too_many_the_first_are_looked_at(own: Attached) -> None:
    own.training = True
    kept = [nn.Identity() for _ in range(MOST + 3)]
    for number, one in enumerate(kept):
        one.number = number

    assert len(own.names()) == MOST


def test_a_module_that_is_gone_is_forgotten(own: Attached) -> None:
    own.training = True
    module = nn.Identity()
    module.scale = 2.0
    del module

    assert own.names() == {}


def test_a_number_stays_with_its_module_when_another_one_is_gone(own: Attached) -> None:
    first, second = nn.Identity(), nn.Identity()
    own.training = True
    first.scale, second.scale = 2.0, 3.0
    del first

    assert found(own) == {"module 1.scale": 3.0}


def test_what_was_first_written_since_an_iteration_began_is_known_as_it_was(own: Attached) -> None:
    layer = nn.Linear(2, 2)
    layer.count = 3  # type: ignore[assignment]
    layer.result, layer.held = torch.ones(2, requires_grad=True) * 2, object()
    own.training = True
    layer.seen = 1  # type: ignore[assignment]
    began = len(own.first_writes)

    for _ in range(2):
        layer.count += 1  # type: ignore[operator]
        layer.seen += 1  # type: ignore[operator]
    layer.late = "x"  # type: ignore[assignment]
    layer.result = layer.held = None  # What these were would be kept alive for ever.

    assert list(own.unwritten(began)) == [
        (layer, "count", 3), (layer, "late", attached_module.ABSENT)
    ]  # fmt: skip
    assert [name for _, name, _ in own.unwritten(0)] == ["seen", "count", "late"]
    del layer
    assert list(own.unwritten(0)) == []


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.zeros(1))

    def forward(self) -> None:
        self.calls += 1
        self.mean = self.mean + 1


def test_ranks_that_write_to_other_modules_look_at_the_same_ones(own: Attached) -> None:
    both, seen = [], []
    for order in ((0, 2), (2, 1)):
        own.__init__()  # type: ignore[misc]
        heads = nn.ModuleList(Head() for _ in range(3))
        own.know(module_paths({"model": nn.ModuleDict({"heads": heads})}, OWN))
        own.training = True
        for number in order:
            heads[number]()
        both.append(list(own.names()))
        seen.append(found(own))

    names = [f"module model.heads.{number}" for number in range(3)]
    assert both == [names, names]
    assert [[one[f"{name}.calls"] for name in names] for one in seen] == [[1, 0, 1], [0, 1, 1]]
    assert [[float(one[f"{name}.mean"]) for name in names] for one in seen] == [
        [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]
    ]  # fmt: skip


def test_what_another_module_held_as_the_name_was_first_written_is_known(own: Attached) -> None:
    heads = nn.ModuleList([Head(), Head()])
    own.know(module_paths({"heads": heads}, OWN))
    own.training = True

    heads[1].calls += 1  # type: ignore[operator]
    heads[0].calls += 1  # type: ignore[operator]

    assert list(own.unwritten(0)) == [(heads[0], "calls", 0), (heads[1], "calls", 0)]


def test_a_process_that_comes_later_looks_at_the_same_modules(own: Attached) -> None:
    model, late = nn.ModuleList([Head(), Head()]), Head()
    own.know(module_paths({"warm": model}, OWN))
    own.training = True
    model[1].calls = 3
    late.scale = 2.0  # type: ignore[assignment]
    here = {"model": nn.Sequential(model), "late": late}
    learned, names = own.learned(module_paths(here, OWN)), list(own.names())

    fresh = {"model": nn.Sequential(nn.ModuleList([Head(), Head()])), "late": Head()}
    own.__init__()  # type: ignore[misc]
    own.learn(learned, module_paths(fresh, OWN))

    assert names == list(own.names()) == ["module 0", "module warm.0", "module warm.1"]
    assert own.written(fresh["late"]) == {"scale"}
    assert own.names()["module warm.1"] is fresh["model"][0][1]
