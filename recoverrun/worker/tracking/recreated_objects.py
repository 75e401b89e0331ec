"""The objects that only rank 0 has made before training, so that its deputy can make them anew.

    if rank == 0:
        writer = SummaryWriter(folder)
    average = Average(model) if rank == 0 else None

A rank that comes by without making it keeps what it takes to do so later: simple values, and
objects for as long as the script itself keeps them.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from recoverrun.worker.instrumentation import Lone, Making

SIMPLE = (str, int, float, bool, bytes, PurePath, type(None))
SMALL = 64
"""Items of a container that is kept for a later making."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A place where rank 0 has made something, as this rank has found it."""

    making: Making
    code: CodeType  # of the function
    names: dict[str, Any]  # of its module
    kept: dict[str, Callable[[], Any]]  # what the making needs of the function's own names

    def has(self, name: str) -> Any:
        """The value of `name` there; None if it was nothing or is no more."""
        return self.kept[name]() if name in self.kept else self.names.get(name)


class RecreatedObjects:
    """The places where rank 0 makes what it alone has."""

    def __init__(self) -> None:
        self._makings: dict[str, tuple[Making, ...]] = {}
        self._recipes: dict[tuple[str, str, str], Recipe] = {}  # file, function, name

    def learn(self, places: Mapping[str, Lone]) -> None:
        self._makings.update({place: lone.makes for place, lone in places.items() if lone.makes})

    def visit(self, where: str, frame: FrameType) -> None:
        """This rank, which is not rank 0, leaves out what stands at `where`."""
        for making in self._makings.get(where, ()):
            variables = {} if frame.f_locals is frame.f_globals else frame.f_locals
            kept = {name: _keeping(variables[name]) for name in making.needs if name in variables}
            key = frame.f_code.co_filename, making.function, making.name
            self._recipes[key] = Recipe(making, frame.f_code, frame.f_globals, kept)

    def recipe(self, code: CodeType, name: str) -> Recipe | None:
        """The place where rank 0 makes what the function `code` knows as `name`, unless that is
        unclear.
        """
        if "." in name:
            recipes = [recipe for key, recipe in self._recipes.items() if key[2] == name]
            of_same_class = [
                recipe for recipe in recipes if _class_of(recipe.code) == _class_of(code)
            ]
            recipes = of_same_class or recipes
        else:
            function = _scope(code, name)
            recipes = [
                recipe
                for (filename, made_in, made), recipe in self._recipes.items()
                if (filename, made) == (code.co_filename, name) and made_in == function
            ]
        return recipes[0] if len(recipes) == 1 else None


def _scope(code: CodeType, name: str) -> str:
    """The qualified name of the function whose variable `name` is in `code`; "" for the module."""
    if name in code.co_freevars:
        return code.co_qualname.rpartition(".<locals>.")[0]
    return code.co_qualname if name in (*code.co_varnames, *code.co_cellvars) else ""


def _class_of(code: CodeType) -> tuple[str, str]:
    return code.co_filename, code.co_qualname.rpartition(".")[0]


def _keeping(value: Any) -> Callable[[], Any]:
    """A function that gets at `value` later, without prolonging the life of anything large."""
    if isinstance(value, SIMPLE) or _is_small(value):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None


def _is_small(value: Any) -> bool:
    """True of a container of a few simple values."""
    items: Iterable[Any]
    if type(value) is dict:
        items = value.values()
    elif type(value) in (list, tuple, set, frozenset):
        items = value
    else:
        return False
    return len(value) <= SMALL and all(isinstance(one, SIMPLE) for one in items)
