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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import CellType, FunctionType, MappingProxyType, MethodType
from typing import Any

import torch
from torch import nn

from recoverrun.hooks.contents import PLAIN, RAW, Variables, array_kinds
from recoverrun.hooks.members import NAMESPACES, Free, Slots, slots_of

MOST = 40_000
"""Objects that are walked through: what hangs on the frames first, then on the main module."""

LONG, VERY_LONG = 1_000, 100_000
"""Entries of a container: longer ones are not looked into, and very long ones are data."""

SMALL_BYTES = 1 << 20
"""Of an array or a tensor: larger ones are data, which nobody changes."""

ALL_BYTES = 1 << 26
"""Of all of them, which are copied."""

CONTAINERS = (dict, list, set, deque, tuple, frozenset)
BEHIND = (CellType, MappingProxyType, functools._lru_cache_wrapper)
WRAPPERS = (UserDict, UserList, ChainMap, threading.local, *NAMESPACES)


Way = Callable[[Any], None]


def holders(variables: Iterable[Mapping[str, Any]], own: frozenset[str]) -> list[Any]:
    """What may hold a part of the script's state and can be put back in place: all that hangs on
    these variables and on the script's modules, `own`. A forked copy finds it in the same order.
    """
    walk = _Walk(own)
    named = sorted(own & sys.modules.keys(), key=lambda name: (name != "__main__", name))
    for names in (*variables, *(vars(sys.modules[name]) for name in named)):
        walk.todo.extend(value for name, value in list(names.items()) if not name.startswith("__"))
        walk.on()
    return [os.environ, Variables(), *walk.found]


class _Walk:
    """Goes from one object to those that it holds, each once.

    By their types alone: a proxy may load what it stands for when it is asked for its class.
    """

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._seen: dict[int, Any] = {}
        self._ways: dict[Any, Way | None] = dict.fromkeys(PLAIN)
        self._left = ALL_BYTES
        self.todo: deque[Any] = deque()
        self.found: list[Any] = []

    def on(self) -> None:
        while self.todo and len(self._seen) < MOST:
            one = self.todo.popleft()
            kind = type(one)
            way = self._ways[kind] if kind in self._ways else self._learn(kind)
            if way is not None and id(one) not in self._seen:
                self._seen[id(one)] = one
                way(one)

    def _learn(self, kind: Any) -> Way | None:
        self._ways[kind] = way = self._way(kind)
        return way

    def _way(self, kind: Any) -> Way | None:
        """What is done with objects of that type."""
        own = kind.__module__ in self._own
        for base in CONTAINERS:
            if issubclass(kind, base):
                return partial(self._at_container, base, own)
        for base, way in self._kinds():
            if issubclass(kind, base):
                return way
        return self._at_instance if own or issubclass(kind, WRAPPERS) else None

    def _kinds(self) -> list[tuple[Any, Way]]:
        return [
            (torch.Tensor, self._at_tensor),
            (array_kinds(), self._at_array),
            (bytearray | array.array, lambda one: self._hold_bytes(one, memoryview(one).nbytes)),
            (RAW, lambda one: self._hold_bytes(one, ctypes.sizeof(one))),
            (type, self._at_class),
            (nn.Module, self._at_module),
            (FunctionType, self._at_function),
            (MethodType, lambda one: self.todo.extend((one.__self__, one.__func__))),
            (partial, lambda one: self.todo.extend((one.func, one.args, one.keywords))),
            (BEHIND, lambda one: self.todo.extend(gc.get_referents(one))),
            (property, lambda one: self.todo.extend((one.fget, one.fset))),
            (classmethod | staticmethod, lambda one: self.todo.append(one.__func__)),
        ]

    def _at_tensor(self, one: torch.Tensor) -> None:
        self._hold_bytes(one, one.numel() * one.element_size(), _is_plain(one))
        self.todo.append(one._backward_hooks)

    def _at_array(self, one: Any) -> None:
        self._hold_bytes(one, one.nbytes, one.flags.writeable and type(one) in array_kinds())
        if one.dtype.hasobject and one.size <= LONG:
            self.todo.extend(one.flat)

    def _at_class(self, one: Any) -> None:
        if one.__module__ in self._own:
            self.found.append(one)
            self.todo.extend(list(vars(one).values()))

    def _at_function(self, one: Any) -> None:
        if one.__module__ not in self._own:
            return
        if one.__closure__ or one.__dict__:
            self.found.append(one)
            self.todo.extend(Free(one).values())
        self.todo.extend((one.__defaults__, one.__kwdefaults__))

    def _at_container(self, plain: Any, own: bool, one: Any) -> None:
        """By the methods of the `plain` kind: those of a class of the script's may do more."""
        size = plain.__len__(one)
        if size <= VERY_LONG and plain not in (tuple, frozenset):
            self.found.append(one)
        if size <= LONG:
            self.todo.extend(list(plain.values(one) if plain is dict else plain.__iter__(one)))
        if own:
            self._at_instance(one)

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
            self.found.append(one)
            self.todo.extend(Slots(one, slots).values())

    def _at_module(self, module: nn.Module) -> None:
        """torch's own wrappers keep books of their own on themselves."""
        kind: Any = type(module)
        wraps = kind.__module__.startswith(("torch.nn.parallel", "torch.distributed"))
        self.todo.append(module._modules if wraps else vars(module))
        self.todo.append(kind)


def _is_plain(tensor: torch.Tensor) -> bool:
    """No parameter, and nothing that has to be asked of somebody else."""
    if tensor.requires_grad or tensor.is_inference() or tensor.layout is not torch.strided:
        return False
    return type(tensor) is torch.Tensor and tensor.device.type != "meta"
