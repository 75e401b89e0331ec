"""Everything of the script's that can hold a count, however it is reached, and what it holds.

What `scene` looks at is bounded, for it is looked at in every microbatch that is executed again. In
a proof there is time: all that hangs on the script's modules and on the variables of its frames is
walked through, whatever its kind (variables of classes with metaclasses, members of an Enum,
thread-local and context variables, arrays, what only a hook or a cache leads to), and what an
execution in the child has left otherwise there is put back from then on (`contents`, `retrial`).
"""

import array
import ctypes
import functools
import gc
import os
import sys
import threading
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Mapping
from types import CellType, FunctionType, MappingProxyType, MethodType
from typing import Any

import torch
from torch import nn

from recoverrun.hooks.contents import PLAIN, RAW, Variables, is_array
from recoverrun.hooks.members import NAMESPACES, Free, Slots, slots_of

MOST = 100_000
"""Objects that are walked through."""

LONG, VERY_LONG = 1_000, 100_000
"""Entries of a container: longer ones are not looked into, and very long ones are data."""

SMALL_BYTES = 1 << 20
"""Of an array or a tensor: larger ones are data, which nobody changes."""

ALL_BYTES = 1 << 26
"""Of all of them, which are copied."""

WRAPPERS = (UserDict, UserList, ChainMap, threading.local, *NAMESPACES)


def holders(variables: Iterable[Mapping[str, Any]], own: frozenset[str]) -> list[Any]:
    """What may hold a part of the script's state and can be put back in place: all that hangs on
    these variables and on the script's modules, `own`. A forked copy finds it in the same order.
    """
    walk = _Walk(own)
    modules = [vars(sys.modules[name]) for name in sorted(own & sys.modules.keys())]
    for names in (*modules, *variables):
        walk.todo.extend(value for name, value in list(names.items()) if not name.startswith("__"))
    walk.on()
    return [os.environ, Variables(), *walk.found]


class _Walk:
    """Goes from one object to those that it holds, each once."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._seen: dict[int, Any] = {}
        self._left = ALL_BYTES
        self.todo: deque[Any] = deque()
        self.found: list[Any] = []

    def on(self) -> None:
        while self.todo and len(self._seen) < MOST:
            one = self.todo.popleft()
            if type(one) not in PLAIN and id(one) not in self._seen:
                self._seen[id(one)] = one
                self._at(one)

    def _at(self, one: Any) -> None:
        kind: Any = type(one)
        if isinstance(one, dict | list | set | deque):
            self._hold(one, len(one) <= VERY_LONG)
            if len(one) <= LONG:
                self.todo.extend(one.values() if isinstance(one, dict) else one)
            if kind.__module__ in self._own:
                self._at_instance(one)
        elif isinstance(one, tuple | frozenset):
            self.todo.extend(one if len(one) <= LONG else ())
        elif isinstance(one, torch.Tensor):
            self._hold_bytes(one, one.numel() * one.element_size(), _is_plain(one))
            self.todo.append(one._backward_hooks)
        elif is_array(one):
            self._hold_bytes(one, one.nbytes, one.flags.writeable)
            if one.dtype.hasobject and one.size <= LONG:
                self.todo.extend(one.flat)
        elif isinstance(one, bytearray | array.array):
            self._hold_bytes(one, memoryview(one).nbytes)
        elif isinstance(one, RAW):
            self._hold_bytes(one, ctypes.sizeof(one))
        elif isinstance(one, type):
            if one.__module__ in self._own:
                self._hold(one)
                self.todo.extend(vars(one).values())
        elif isinstance(one, nn.Module):
            self._at_module(one)
        elif isinstance(one, WRAPPERS) or kind.__module__ in self._own:
            self._at_instance(one)
        else:
            self.todo.extend(self._through(one))

    def _hold(self, one: Any, fits: bool = True) -> None:
        if fits:
            self.found.append(one)

    def _hold_bytes(self, one: Any, size: int, can: bool = True) -> None:
        if can and size <= min(SMALL_BYTES, self._left):
            self._left -= size
            self.found.append(one)

    def _at_instance(self, one: Any) -> None:
        local = isinstance(one, threading.local)  # has a dict for each thread
        try:
            attributes = one.__dict__ if local else object.__getattribute__(one, "__dict__")
        except AttributeError:
            attributes = None
        if isinstance(attributes, dict):
            self.todo.append(attributes)
        kind: Any = type(one)
        if slots := slots_of(kind):
            self._hold(one)
            self.todo.extend(Slots(one, slots).values())

    def _at_module(self, module: nn.Module) -> None:
        """torch's own wrappers keep books of their own on themselves."""
        kind: Any = type(module)
        wraps = kind.__module__.startswith(("torch.nn.parallel", "torch.distributed"))
        self.todo.append(module._modules if wraps else vars(module))
        self.todo.append(kind)

    def _through(self, one: Any) -> Iterable[Any]:
        """What lies behind things of the language itself."""
        match one:
            case FunctionType():
                if one.__module__ not in self._own:
                    return ()
                self._hold(one)
                return (*Free(one).values(), *(one.__defaults__ or ()), one.__kwdefaults__)
            case MethodType():
                return (one.__self__, one.__func__)
            case functools.partial():
                return (one.func, one.args, one.keywords)
            case CellType() | MappingProxyType() | functools._lru_cache_wrapper():
                return gc.get_referents(one)
            case property():
                return (one.fget, one.fset)
            case classmethod() | staticmethod():
                return (one.__func__,)
        return ()


def _is_plain(tensor: torch.Tensor) -> bool:
    """No parameter, and nothing that has to be asked of somebody else."""
    if tensor.requires_grad or tensor.is_inference() or tensor.layout is not torch.strided:
        return False
    return type(tensor) is torch.Tensor and tensor.device.type != "meta"
