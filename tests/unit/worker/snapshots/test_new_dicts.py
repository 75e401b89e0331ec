"""Dicts and objects in place of None are there again with all that they hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.ways_back import gone_back

TEXT = """
from collections import OrderedDict, defaultdict
from threading import Lock

import torch

class Best:
    def __init__(self): self.loss, self.sum = 9.0, torch.zeros(3)

class Own:
    def __init__(self): self.best, self.held = None, {}

def shape(): return 1

best = None
own, known = Own(), Best()
"""

PUTS: dict[str, Callable[[Any, Any], None]] = {
    "variable": lambda module, value: setattr(module, "best", value),
    "attribute": lambda module, value: setattr(module.own, "best", value),
    "entry": lambda module, value: module.own.held.update(best=value),
}
GETS: dict[str, Callable[[Any], Any]] = {
    "variable": lambda module: module.best,
    "attribute": lambda module: module.own.best,
    "entry": lambda module: module.own.held["best"],
}

Make = Callable[[Any], Any]


def _back(make: Make, where: str) -> tuple[Any, Any]:
    """The module of the process that went back, and what it has there."""
    _, other = gone_back(TEXT, lambda module: PUTS[where](module, make(module)))
    return other, GETS[where](other)


def _best(module: Any) -> Any:
    one = module.Best()
    one.loss = 0.5
    one.sum += 2
    return one


@pytest.mark.parametrize("where", PUTS)
@pytest.mark.parametrize("kind", ["dict", "OrderedDict", "defaultdict"])
def test_a_dict_of_objects_is_there_again(kind: str, where: str) -> None:
    def make(module: Any) -> Any:
        inner = {"best": _best(module), "steps": 7}
        if kind == "dict":
            return inner
        if kind == "OrderedDict":
            return module.OrderedDict(inner)
        return module.defaultdict(list, inner)

    _, found = _back(make, where)

    assert type(found).__name__ == kind
    assert (found["best"].loss, found["best"].sum.tolist(), found["steps"]) == (0.5, [2.0] * 3, 7)


@pytest.mark.parametrize("where", PUTS)
def test_dicts_within_dicts_are_made_from_the_outside_inwards(where: str) -> None:
    _, found = _back(lambda module: {"a": {"b": {"best": _best(module), "steps": 7}}}, where)

    assert (found["a"]["b"]["best"].loss, found["a"]["b"]["steps"]) == (0.5, 7)


@pytest.mark.parametrize("where", PUTS)
def test_an_object_is_there_again(where: str) -> None:
    _, found = _back(_best, where)

    assert (found.loss, found.sum.tolist()) == (0.5, [2.0] * 3)


@pytest.mark.parametrize("where", PUTS)
def test_a_dict_of_functions_and_known_objects_has_those_of_the_process(where: str) -> None:
    other, found = _back(lambda one: {"shape": one.shape, "known": one.known}, where)

    assert found["shape"] is other.shape and found["known"] is other.known


@pytest.mark.parametrize("where", PUTS)
def test_beside_an_object_that_is_not_made_the_values_are_there(where: str) -> None:
    _, found = _back(lambda module: {"lock": module.Lock(), "total": torch.ones(3)}, where)

    assert found["total"].tolist() == [1.0] * 3 and "lock" not in found


def test_a_long_text_in_a_new_dict_is_there_again() -> None:
    _, found = _back(lambda module: {"text": "a" * (1 << 20)}, "attribute")

    assert found["text"] == "a" * (1 << 20)


def test_an_object_in_a_new_dict_that_holds_itself_does_so_again() -> None:
    def make(module: Any) -> Any:
        one = module.Best()
        one.itself, one.owner = one, module.own
        return {"best": one}

    other, found = _back(make, "attribute")

    assert found["best"].itself is found["best"] and found["best"].owner is other.own
