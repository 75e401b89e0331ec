"""Variables of the project's modules that may hold state, as far as the modules' texts show."""

from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from recoverrun.worker.context.member_views import MOST_ENTRIES
from recoverrun.worker.context.object_members import DICTS, NAMESPACES, is_own_kind
from recoverrun.worker.context.values import is_kept
from recoverrun.worker.instrumentation import Changes


class ChangingVariables:
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
