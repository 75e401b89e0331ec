"""Modules that the script makes itself are known, also once others are in their place."""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from recoverrun.worker.context.made_modules import made_by_script

NAME = "settings_of_this_test"
OWN = frozenset({__name__})


@pytest.fixture
def _cleaned() -> Iterator[None]:
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.usefixtures("_cleaned")
def test_a_module_is_known_as_long_as_it_is_there() -> None:
    assert NAME not in made_by_script(OWN)

    sys.modules[NAME] = ModuleType(NAME)
    assert NAME in made_by_script(OWN) and NAME in made_by_script(OWN)

    del sys.modules[NAME]
    assert NAME not in made_by_script(OWN)


@pytest.mark.usefixtures("_cleaned")
def test_another_module_in_its_place_is_looked_at_anew() -> None:
    sys.modules[NAME] = ModuleType(NAME)
    assert NAME in made_by_script(OWN)

    sys.modules[NAME] = read = ModuleType(NAME)
    read.__spec__ = ModuleSpec(NAME, None)

    assert NAME not in made_by_script(OWN)
