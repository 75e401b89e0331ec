"""Post-import hooks (PEP 369): functions that are called with a module once it is fully imported.

A module is in `sys.modules` from before its first line, and import cycles let others see it half
executed: `from transformers import TrainingArguments` imports torch in the middle of the module
that will define that name. So a hook runs when the execution of its module, and of all packages
around it, has ended. The import system then sets `_initializing` of the module's spec to False,
which is how the hook learns of it. No frame of ours is around the execution, so the traceback of a
failing import is Python's own.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

PostImportHook = Callable[[ModuleType], None]

OURS = __name__.partition(".")[0]


class PostImportHooks:
    """The hooks that wait, and a finder that marks the specs of their modules."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[PostImportHook]] = {}
        self._pid = 0  # the process that waits

    def when_imported(self, name: str, hook: PostImportHook) -> None:
        """Call `hook` with the module `name` once it has been imported, at once if it is."""
        if not self._awaited:
            self._pid = os.getpid()
        self._awaited.setdefault(name, []).append(hook)
        self.run_due()
        if self._awaited and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def run_due(self) -> None:
        """Run the hooks of modules that are executed by now, except in a forked process."""
        if os.getpid() != self._pid:
            return
        for name in list(self._awaited):
            module = sys.modules.get(name)
            if module is not None and not any(map(self._is_executing, _around(name))):
                for hook in self._awaited.pop(name, ()):
                    hook(module)
        if not self._awaited and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the finders after this one find. No import need follow."""
        if name not in self._awaited or os.getpid() != self._pid:
            return None
        spec = find_after(self, name, path, target)
        if spec is not None:
            _mark_pending(spec, self)
        return spec

    def _is_executing(self, name: str) -> bool:
        """True if a module is not executed to its end; then its end runs the hooks."""
        module = sys.modules.get(name)
        spec = None if module is None else vars(module).get("__spec__")
        if not _is_initializing(spec):
            return False
        _mark_pending(spec, self)
        return _is_initializing(spec)  # another thread may have ended it meanwhile


HOOKS = PostImportHooks()  # mutable, as `sys.meta_path` is: there is one of each in a process
when_imported = HOOKS.when_imported


class _Searches(threading.local):
    """The finders of others that this thread has asked for a module, and that have not answered."""

    def __init__(self) -> None:
        self.under_way: set[tuple[str, int]] = set()  # of which module, and the finder's identity


SEARCHES = _Searches()


def find_after(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return what the finders behind `finder` find. One that asks all others, as this does, comes
    back here: it is not asked again.
    """
    finders = list(sys.meta_path)
    for later in finders[finders.index(finder) + 1 :]:  # type: ignore[arg-type]
        spec = _answer(later, name, path, target)
        if spec is not None:
            assert isinstance(spec, ModuleSpec), f"{later!r} found {spec!r}"
            return spec
    return None


def _answer(
    finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    find_spec, mark = getattr(finder, "find_spec", None), (name, id(finder))
    if find_spec is None or mark in SEARCHES.under_way:
        return None
    if type(finder).__module__.partition(".")[0] == OURS:  # only asks those behind it
        return cast(ModuleSpec | None, find_spec(name, path, target))
    SEARCHES.under_way.add(mark)
    try:
        return cast(ModuleSpec | None, find_spec(name, path, target))
    finally:
        SEARCHES.under_way.discard(mark)


class _PendingSpec(ModuleSpec):
    """The class of a spec until its module has been executed."""

    @property
    def _initializing(self) -> bool:
        return _is_initializing(self)

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self)["_initializing"] = value
        if not value:
            hooks = vars(self).pop("_hooks")
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            hooks.run_due()


def _mark_pending(spec: Any, hooks: PostImportHooks) -> None:
    if type(spec) is ModuleSpec:
        vars(spec)["_hooks"] = hooks
        spec.__class__ = _PendingSpec


def _is_initializing(spec: Any) -> bool:
    return spec is not None and bool(vars(spec).get("_initializing"))


def _around(name: str) -> Iterator[str]:
    """Return the names of the packages around a module, and its own."""
    parts = name.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))
