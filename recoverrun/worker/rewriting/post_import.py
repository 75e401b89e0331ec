"""Waits for modules that the script imports, and hands them over whole.

A module stands in `sys.modules` from before its first line, and import circles let others see it
half made: `from transformers import TrainingArguments` imports torch in the midst of the module
that is to define that name. So a module is handed over when its execution has ended, and that of
all packages around it. The import system itself says when: it then sets `_initializing` of the
module's spec to False. As no frame of ours is around the execution, the traceback of a failing
import is Python's own.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PostImportHook = Callable[[ModuleType], None]


class PostImportHooks:
    """Which modules are waited for; a finder that has what others find tell when it is executed."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[PostImportHook]] = {}
        self._pid = os.getpid()

    def when_imported(self, name: str, hook: PostImportHook) -> None:
        """Call `hook` with the module `name` once it has been imported, at once if it is."""
        self._awaited.setdefault(name, []).append(hook)
        self.run_due()
        if self._awaited and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def run_due(self) -> None:
        """Hand over what is executed by now, unless this is a process that the script forked."""
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
        """Return what the finders after this one find. To be asked is not to be imported yet."""
        if name not in self._awaited or os.getpid() != self._pid:
            return None
        spec = find_after(self, name, path, target)
        if spec is not None:
            _mark_pending(spec, self)
        return spec

    def _is_executing(self, name: str) -> bool:
        """Whether a module is not executed to its end; if so, that end is waited for."""
        module = sys.modules.get(name)
        spec = None if module is None else vars(module).get("__spec__")
        if not _is_initializing(spec):
            return False
        _mark_pending(spec, self)
        return _is_initializing(spec)  # another thread may have ended it meanwhile


HOOKS = PostImportHooks()
when_imported = HOOKS.when_imported


def find_after(
    finder: object, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return what the finders behind `finder` find."""
    finders = list(sys.meta_path)
    for other in finders[finders.index(finder) + 1 :]:  # type: ignore[arg-type]
        find_spec = getattr(other, "find_spec", None)
        spec = find_spec(name, path, target) if find_spec is not None else None
        if spec is not None:
            assert isinstance(spec, ModuleSpec), f"{other!r} found {spec!r}"
            return spec
    return None


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
    """The packages around a module, and itself."""
    parts = name.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))
