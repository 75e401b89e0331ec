"""The script's objects that a context looks into, and by which paths."""

import abc
import argparse
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DistributedSampler

from recoverrun.worker.context import slot_context
from recoverrun.worker.context.slot_context import DEPTH, attributes_of, owners_of
from tests.unit.parameter_ids import without_address

OWN = frozenset({__name__})


class Node:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("at",)

    def __init__(self, at: Any) -> None:
        self.at = at


class Counted:
    calls = 3
    rates = {"low": 0.1}  # as scripts have them


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps, self.state = 1, {"a": 1}


def kept(at: Any) -> Any:
    def fetch() -> Any:
        return at

    return fetch


def paths(names: dict[str, Any]) -> list[str]:
    return [".".join(path) for path, _ in owners_of(names, OWN)]


@pytest.mark.parametrize(
    ("held", "path"),
    [
        ({"a": 1}, ("x", "['a']")),
        ({"a": {2: 1}}, ("x", "['a']", "[2]")),
        (kept(1), ("x", "at")),
        (kept({"a": 1}), ("x", "at", "['a']")),
        (Slotted(1), ("x", "at")),
        (Slotted(Slotted({"a": 1})), ("x", "at", "at", "['a']")),
        (argparse.Namespace(lr=1), ("x", "lr")),
        ({"args": argparse.Namespace(lr=1)}, ("x", "['args']", "lr")),
        (Node(fetch=kept(1)), ("x", "fetch", "at")),
        ([Node(), Node(at=1)], ("x", "[1]", "at")),
        ((Slotted(1),), ("x", "[0]", "at")),
        (Node(callbacks=[Node(at=1)]), ("x", "callbacks", "[0]", "at")),
    ],
    ids=without_address,
)
def test_a_value_is_found_by_its_path_through_whatever_holds_it(
    held: Any, path: tuple[str, ...]
) -> None:
    assert attributes_of({"x": held}, OWN)[path] == 1


def test_variables_of_a_class_are_found_and_so_is_what_they_hold() -> None:
    found = attributes_of({"Counted": Counted}, OWN)

    assert found[("Counted", "calls")] == 3
    assert found[("Counted", "rates", "['low']")] == 0.1


def test_what_goes_by_two_names_is_found_by_the_nearest() -> None:
    shared = {"a": 1}

    assert paths({"far": Node(inner=shared), "near": shared}) == ["far", "near"]


def test_what_holds_itself_is_looked_into_once() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless

    assert paths({"x": endless}) == ["x"]


@pytest.mark.parametrize(
    "value",
    [
        Model(), nn.Linear(1, 1), Model, torch.optim.SGD([torch.zeros(1)], 0.1), torch.Generator,
        torch.zeros(1).sum, argparse, [], [Model()], [Node(), 1], [Node()] * 17,
        dict.fromkeys(range(99)), "text", argparse.ArgumentParser(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_nothing_is_looked_for_in_models_and_what_others_define(value: Any) -> None:
    assert paths({"x": value}) == []
    assert paths({"x": {"inner": value}}) == ["x"]


def test_variables_of_python_s_own_are_not_looked_into() -> None:
    assert paths({"__annotations__": {"x": 1}, "_own": {"x": 1}}) == ["_own"]


# --------------------------------------------------------------------------- samplers


def test_of_a_sampler_of_torch_s_only_its_rank_is_looked_at_however_deep_it_lies() -> None:
    rows = DistributedSampler(range(6), num_replicas=2, rank=1, seed=3)
    batches = BatchSampler(rows, 2, drop_last=True)

    found = attributes_of({"x": Node(rows=batches)}, OWN)

    assert found == {("x", "rows", "sampler", "rank"): 1}


class Sampling(DistributedSampler[int]):
    pass


def test_of_a_sampler_of_the_script_s_all_is() -> None:
    found = attributes_of({"x": Sampling(range(6), num_replicas=2, rank=1, seed=3)}, OWN)

    assert found["x", "rank"] == 1
    assert found["x", "seed"] == 3


# --------------------------------------------------------------------------- bounds


def test_it_looks_so_deep_and_no_deeper() -> None:
    deep: Any = {"value": 0}
    for level in range(1, DEPTH + 2):
        deep = {"value": level, "inner": deep}

    found = [path for path in attributes_of({"x": deep}, OWN) if path[-1] == "['value']"]

    assert [len(path) for path in found] == list(range(2, DEPTH + 2))


def test_what_is_near_comes_first_where_all_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_context, "MOST_OWNERS", 3)
    names = {"one": {"in": {"in": {}}}, "two": {"in": {"in": {}}}, "three": {"in": {"in": {}}}}

    assert paths(names)[:3] == ["one", "two", "three"]
    assert not any(path.count("in") > 1 for path in paths(names))


def test_so_many_are_looked_into_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_context, "MOST_OWNERS", 3)
    wide = {key: {inner: {} for inner in range(9)} for key in range(9)}

    assert len(paths({"wide": wide})) == 3


# --------------------------------------------------------------------------- frameworks


def of_framework(**held: Any) -> Any:
    made = type("Trainer", (), {"__module__": "lightning.pytorch.trainer"})()
    vars(made).update(held)
    return made


def test_of_a_framework_s_objects_its_own_and_the_script_s_are_looked_into_alone() -> None:
    trainer = of_framework(
        step=5, loop=of_framework(batch=7), node=Node(at=1), config={"a": 1}, hook=kept(1),
        args=argparse.Namespace(lr=1), model=Model(), slotted=Slotted(1),
    )  # fmt: skip

    found = attributes_of({"trainer": trainer}, OWN)

    assert found == {
        ("trainer", "step"): 5,
        ("trainer", "loop", "batch"): 7,
        ("trainer", "node", "at"): 1,
    }


class Abstract(abc.ABC):
    count = 3

    @abc.abstractmethod
    def read(self) -> int: ...


class Function(torch.autograd.Function):
    count = 3


@pytest.mark.parametrize("kind", [Abstract, Function])
def test_variables_of_a_class_are_seen_whatever_makes_classes_of_its_kind(kind: Any) -> None:
    assert attributes_of({"Made": kind}, OWN)["Made", "count"] == 3
