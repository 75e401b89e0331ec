"""State that a script keeps in variables of its project's modules.

    at = 0                                          # in data.py

    def next_batch():
        global at
        at += 1

    config.step += 1                                # in the script

A loop in another module does not see these variables, and whoever executes a microbatch of another
rank needs them as they were there. So a module is looked at like an object of the script's, under a
name that no variable has. Its members are the variables that the text of some module may change
(`analysis.changed_names`), and objects that keep something themselves; once it is known which names
microbatches may read, these alone. Constants are passed over.
"""

import sys
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from recoverrun.worker.context.member_views import (
    MOST_ENTRIES,
    ModuleVariables,
)
from recoverrun.worker.context.object_members import (
    DICTS,
    NAMESPACES,
    is_own_kind,
)
from recoverrun.worker.context.values import is_kept
from recoverrun.worker.instrumentation import Changes

MOST = 64
"""Variables of all modules that are looked at: each takes some 0.04 ms of a step."""


class ModuleData:
    """The modules of the project with variables that may change."""

    def __init__(self) -> None:
        self._own: dict[str, Changes] = {}  # by module
        self._read: frozenset[str] | None = None  # names that microbatches may read; None: any
        self._sizes: list[tuple[dict[str, Any], int]] = []  # of the modules, as they were looked at
        self._found: dict[str, ModuleVariables] = {}

    def own(self, module: str, changes: Changes) -> None:
        """`module` is the project's. Its text `changes` variables, of its own or of others."""
        self._own[module], self._sizes = changes, []

    def read(self, names: frozenset[str] | None) -> None:
        """Microbatches may read these names alone; None: any."""
        if names is not self._read:
            self._read, self._sizes = names, []

    def beside(self, seen: Mapping[str, Any]) -> dict[str, ModuleVariables]:
        """All modules but the one whose variables are `seen`, each under its name."""
        if not self._sizes or any(len(held) != size for held, size in self._sizes):
            self._look()
        return {name: one for name, one in self._found.items() if one.variables is not seen}

    def _look(self) -> None:
        loaded, left = self._loaded(), MOST
        self._sizes = [(vars(module), len(vars(module))) for module, _ in loaded.values()]
        self._found = {}
        state = _State(self._own)
        for name, (module, changes) in sorted(loaded.items()):
            held = vars(module)
            bound = changes.rebound - held.keys()  # a function makes it later
            names = [one for one in held if state.may_be(one, held[one], changes)] + sorted(bound)
            names = [one for one in names if self._read is None or one in self._read]
            if names and left >= len(names):
                left -= len(names)
                self._found[f"<{name}>"] = ModuleVariables(held, names)

    def _loaded(self) -> dict[str, tuple[ModuleType, Changes]]:
        """The modules that are there; the main one may be known by another name (`-m`)."""
        main = sys.modules["__main__"]
        known = getattr(main.__spec__, "name", "")
        own = {"__main__" if name == known else name: one for name, one in self._own.items()}
        there = {name: sys.modules.get(name) for name in own}
        return {name: (one, own[name]) for name, one in there.items() if type(one) is ModuleType}


class _State:
    """Tells what may be state, as far as the texts of all modules show."""

    def __init__(self, own: Mapping[str, Changes]) -> None:
        every = [frozenset[str]().union(*part) for part in zip(*own.values(), strict=True)]
        self._every = Changes(*every)
        self._modules = frozenset(own) | {"__main__"}
        self._classes = {name for name, one in own.items() if "cls" in one.owners}

    def may_be(self, name: str, value: Any, changes: Changes) -> bool:
        """True of a variable of the module with these changes that may hold state."""
        kind: Any = type(value)
        if name.startswith("__") or kind is ModuleType:
            return False
        plain = is_kept(kind) or kind in DICTS or kind in NAMESPACES
        if name in changes.rebound or (name in self._every.attributes and plain):
            return True
        if kind is MethodType:
            return self.may_be(name, value.__self__, changes)
        if kind is FunctionType:
            free = value.__code__.co_freevars
            return name in self._every.owners or not self._every.rebound.isdisjoint(free)
        if isinstance(value, type):
            return name in self._every.owners or value.__module__ in self._classes
        if plain:
            return name in self._every.contents | self._every.owners or self._holds_own(value)
        return hasattr(kind, "__next__") or self._is_own(value)

    def _holds_own(self, value: Any) -> bool:
        """True of a dict with objects of the script's."""
        short = type(value) in DICTS and len(value) <= MOST_ENTRIES
        return short and any(self._is_own(one) for one in value.values())

    def _is_own(self, value: Any) -> bool:
        kind: Any = type(value)
        return is_own_kind(kind, self._modules)
