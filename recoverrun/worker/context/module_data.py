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
from types import ModuleType
from typing import TYPE_CHECKING, Any

from recoverrun.worker.instrumentation import Changes

if TYPE_CHECKING:  # it imports torch, which the script imports when it wants to
    from recoverrun.worker.context.member_views import ModuleVariables

MOST = 64
"""Variables of all modules that are looked at: each takes some 0.04 ms of a step."""


class ModuleData:
    """The modules of the project with variables that may change."""

    def __init__(self) -> None:
        self._own: dict[str, Changes] = {}  # by module
        self._read: frozenset[str] | None = None  # names that microbatches may read; None: any
        self._looked_at: list[dict[str, Any]] = []  # the variables of modules
        self._sizes: list[int] = []  # of these, as they were looked at
        self._found: dict[str, ModuleVariables] = {}

    def own(self, module: str, changes: Changes) -> None:
        """`module` is the project's. Its text `changes` variables, of its own or of others."""
        self._own[module], self._sizes = changes, []

    def read(self, names: frozenset[str] | None) -> None:
        """Microbatches may read these names alone; None: any."""
        if names is not self._read:
            self._read, self._sizes = names, []

    def beside(self, seen: Mapping[str, Any]) -> dict[str, "ModuleVariables"]:
        """All modules but the one whose variables are `seen`, each under its name."""
        if not self._sizes or list(map(len, self._looked_at)) != self._sizes:
            self._look()
        return {name: one for name, one in self._found.items() if one.variables is not seen}

    def _look(self) -> None:
        # Only now: they import torch, too.
        from recoverrun.worker.context.changing_variables import ChangingVariables
        from recoverrun.worker.context.member_views import ModuleVariables

        loaded, left = self._loaded(), MOST
        self._looked_at = [vars(module) for module, _ in loaded.values()]
        self._sizes = list(map(len, self._looked_at))
        self._found = {}
        state = ChangingVariables(self._own)
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
