"""Variables of the project's modules that may change, as members of what a context looks at."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from recoverrun.worker.analysis.changed_names import changed_names
from recoverrun.worker.context.module_data import MOST, ModuleData
from recoverrun.worker.context.object_members import spelt
from recoverrun.worker.context.slot_context import attributes_of

NAME = "a_module_with_state"
OWN = frozenset({__name__, NAME})

Make = Callable[..., tuple[ModuleData, ModuleType]]


class Stream:
    def __init__(self) -> None:
        self.at = 3


@pytest.fixture
def make() -> Iterator[Make]:
    def made(text: str, **variables: Any) -> tuple[ModuleData, ModuleType]:
        data, module = ModuleData(), ModuleType(NAME)
        vars(module).update(variables)
        sys.modules[NAME] = module
        data.own(NAME, changed_names(text.encode()))
        data.own(__name__, changed_names(b""))
        return data, module

    yield made
    del sys.modules[NAME]


def found(data: ModuleData) -> dict[str, Any]:
    return {spelt(path): value for path, value in attributes_of(data.beside({}), OWN).items()}


def test_what_functions_rebind_is_state_and_constants_are_passed_over(make: Make) -> None:
    text = "def f():\n    global at\n    at += 1"
    data, module = make(text, at=5, ROWS=7, NAMES=["a"], TABLE={"a": 1})

    assert found(data) == {f"{NAME}.at": 5}
    data.beside({})[f"<{NAME}>"]["at"] = 6
    assert module.at == 6


def test_containers_that_are_changed_in_place_and_objects_are_state(make: Make) -> None:
    text = "STATS['seen'] += 1\nhard.append(2)\nconfig.step += 1"
    held = {"STATS": {"seen": 4}, "hard": [1], "stream": Stream(), "step": 2, "EPS": 0.1}
    data, _ = make(text, **held)

    values = found(data)

    assert values[f'{NAME}.STATS["seen"]'.replace('"', "'")] == 4
    assert (values[f"{NAME}.hard"], values[f"{NAME}.stream.at"]) == ([1], 3)
    assert values[f"{NAME}.step"] == 2 and f"{NAME}.EPS" not in values


def test_a_variable_that_a_function_makes_later_is_found_then(make: Make) -> None:
    data, module = make("def f():\n    global at\n    at = 1")
    before = found(data)
    vars(module)["at"] = 1

    assert (before, found(data)) == ({}, {f"{NAME}.at": 1})


def test_the_variables_that_the_loop_sees_itself_are_left_to_it(make: Make) -> None:
    data, module = make("def f():\n    global at\n    at = 1", at=0)

    assert list(data.beside({})) == [f"<{NAME}>"]
    assert data.beside(vars(module)) == {}


def test_what_no_microbatch_reads_is_left_out_once_that_is_known(make: Make) -> None:
    data, _ = make("def f():\n    global at, logged\n    at = logged = 1", at=0, logged=0)
    data.read(frozenset({"at"}))

    assert found(data) == {f"{NAME}.at": 0}


def test_iterators_of_pythons_own_are_no_state_that_another_rank_could_be_given(
    make: Make,
) -> None:
    data, _ = make("def f():\n    global items\n    items = 1", items=iter([1, 2]))

    assert list(data.beside({})[f"<{NAME}>"]) == []


def test_a_module_with_too_many_variables_is_left_out(make: Make) -> None:
    names = [f"v{number}" for number in range(MOST + 1)]
    text = f"def f():\n    global {', '.join(names)}"
    data, _ = make(text, **dict.fromkeys(names, 0))

    assert data.beside({}) == {}
