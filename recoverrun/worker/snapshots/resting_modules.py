"""Modules of libraries that hold what they held as the run began: a snapshot passes them over.

Most of what hangs on a script are layers, with some twenty attributes each, of which none changes
but `training`. A layer without buffers, submodules and hooks holds plain values and parameters
alone. As long as these are the very objects that it held as the run began, nothing of it is told in
a snapshot, but for its parameters, which are told by themselves.
"""

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

from torch import nn

from recoverrun.worker.context.object_graph import OF_HOOKS
from recoverrun.worker.context.object_views import PLAIN
from recoverrun.worker.context.tensor_attributes import has_any

Seen = tuple[str, weakref.ref[nn.Module], list[Any], int]
"""The path, the module, what it holds, and how many objects that is beside plain values."""

_PLAIN = frozenset(PLAIN)
_EMPTY = frozenset({dict, OrderedDict, set})
"""Kinds of the containers that a module has for what such a layer does not hold."""


class RestingModules:
    """The layers of one process, as the run began. Parameters are held weakly: a script may drop
    them.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        """Modules are given with the paths on which they were found."""
        self._seen: dict[int, Seen] = {}
        for path, module in modules:
            if path and (held := contents(module)) is not None:
                self._seen[id(module)] = path, weakref.ref(module), held, _size(module)

    def size(self, path: str, module: nn.Module) -> int:
        """The objects that a walk need not look at, as they are what they were; 0 if some are not,
        or if the module was found elsewhere.
        """
        if (seen := self._seen.get(id(module))) is None:
            return 0
        known, ref, before, size = seen
        if known != path or ref() is not module:
            return 0
        now = contents(module)
        rests = now is not None and len(now) == len(before) and all(map(is_, now, before))
        return size if rests else 0

    def but_for(self, paths: Iterable[str]) -> "RestingModules":
        """The same without the modules that have something at these paths."""
        rest = RestingModules(())
        known = tuple(paths)
        for number, one in self._seen.items():
            if not any(path.startswith(f"{one[0]}.vars") for path in known):
                rest._seen[number] = one
        return rest


def contents(module: nn.Module) -> list[Any] | None:
    """All that a layer holds, in an order of its own, and parameters by references to them; None
    if it holds something that may change by itself, or leads to other objects.
    """
    found: list[Any] = []
    for name, value in vars(module).items():
        kind: Any = type(value)
        found.append(name)
        if kind in _PLAIN:
            found.append(value)
        elif kind in _EMPTY:
            found.append(kind)
            if value and not (name == "_parameters" and _add_parameters(value, found)):
                return None
        elif kind is tuple and all(type(one) in _PLAIN for one in value):
            found.append(value)
        else:
            return None
    return found


def _size(module: nn.Module) -> int:
    """As many as `object_graph` counts: dicts of hooks that hold none are none."""
    held = vars(module)
    around = [name for name, one in held.items() if type(one) not in _PLAIN]
    return 1 + sum(not name.endswith(OF_HOOKS) for name in around) + len(module._parameters)


def _add_parameters(params: Mapping[str, Any], found: list[Any]) -> bool:
    """False if one is there of which more is told than its elements."""
    for name, param in params.items():
        found.append(name)
        if param is None:
            found.append(None)
        elif param.requires_grad and param._backward_hooks is None and not has_any(param):
            found.append(weakref.ref(param))  # the very same one as long as the parameter lives
        else:
            return False
    return True
