"""Everything of the script's that can hold a value, however it is reached.

What `undo_log` looks at is bounded, for it is looked at in every microbatch that is executed again.
In a proof there is time: all that hangs on the script's modules and on the variables of its frames
is walked through, whatever its kind (variables of classes with metaclasses, members of an Enum,
thread-local and context variables, arrays, what only a hook or a cache leads to). What an execution
in the child has left otherwise there is put back from then on (`object_contents`, `replay_trial`),
and where ranks hold different values there, each belongs to its rank (`rank_constants`).
"""

import array
import contextvars
import ctypes
import functools
import gc
import os
import subprocess
import sys
import threading
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from recoverrun.worker.context.item_kinds import ITERATORS, gives_items
from recoverrun.worker.context.made_modules import made_by_script
from recoverrun.worker.context.member_views import Slots
from recoverrun.worker.context.module_kinds import kind_of
from recoverrun.worker.context.object_members import NAMESPACES, is_defined_in, slots_of
from recoverrun.worker.context.object_views import (
    CACHE,
    PLAIN,
    RAW,
    Function,
    Variables,
    behind_cache,
    behind_proxy,
    is_view,
    items_in,
)
from recoverrun.worker.context.passed_over import NOTHING, PassedOver
from recoverrun.worker.context.tensor_attributes import OF_TENSORS, given_to
from recoverrun.worker.data.numpy_arrays import array_kinds

MOST = 40_000
"""Objects that are walked through: what hangs on the frames first, then on the main module."""

LONG, VERY_LONG = 1_000, 100_000
"""Entries of a container: longer ones are not looked into, and very long ones are data."""

SMALL_BYTES = 1 << 20
"""The size of the largest array or tensor that is noted: larger ones are taken for constant."""

ALL_BYTES = 1 << 26
"""The size of all arrays and tensors together that are copied in one walk."""

HOOKS = "_hooks"
"""The end of the names of torch's dicts of hooks, whose keys count those of one process."""

OF_HOOKS = (HOOKS, "_hooks_with_kwargs", "_hooks_always_called")
"""The ends of the names of those and of torch's notes on them."""

LONG_PATH = 400
"""The length of the longest name in characters; what lies deeper has none."""

_PLAIN = frozenset(PLAIN)
_HOOK_KINDS = frozenset({dict, OrderedDict})

CONTAINERS = (dict, list, set, deque, tuple, frozenset)
WRAPPERS = (UserDict, UserList, ChainMap, threading.local, *NAMESPACES)

Way = Callable[[str, Any], None]
"""Takes the name by which an object was found, "" if it has none, and the object."""


Resting = Callable[[str, nn.Module], int]
"""Takes a module and the name by which it was found."""

LookedInto = Mapping[type, tuple[str, ...]]
"""Classes of libraries whose objects are looked into, and the attributes; () for all of them."""

Items = list[tuple[Any, Any]]
"""Members of an object, each by its name or place."""


class HeldObject(NamedTuple):
    """An object that has a name, and its members; none where there are more than LONG."""

    path: str
    one: Any
    items: Items
    objects: Items
    """Those that are no plain values."""


@dataclass(slots=True)
class Holdings:
    """Objects of the script, each with its name, in the order in which a forked copy finds them."""

    held: list[tuple[str, Any]] = field(default_factory=list)
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    iterators: list[tuple[str, Any]] = field(default_factory=list)  # of Python's own
    sources: list[tuple[str, Any]] = field(default_factory=list)
    """Other sources of one item after another: generators, files, queues, iterators in C."""
    tuples: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    owners: dict[int, Any] = field(default_factory=dict)
    """Classes of the objects whose attributes are in `held` as a dict, by the id of that dict."""
    passed: PassedOver = NOTHING
    _holders: list[HeldObject] | None = field(default=None, init=False)

    @property
    def holders(self) -> list[HeldObject]:
        """Those of `held` that have a name, with their members as they were when this was asked
        for the first time: many look through them at the same moment.
        """
        if self._holders is None:
            self._holders = [self._holder(path, one) for path, one in self.held if path]
        return self._holders

    @property
    def objects(self) -> list[Any]:
        return [one for _, one in self.held]

    def _holder(self, path: str, one: Any) -> HeldObject:
        items: Items = []
        if type(one) is dict:
            items = list(one.items()) if len(one) <= LONG else []
            if not self.passed.names.isdisjoint(one):
                lies, owner = self.passed.lies_at, self.owners.get(id(one))
                items = [(key, value) for key, value in items if not lies(path, key, owner)]
        elif type(one) is list:
            items = list(enumerate(one)) if len(one) <= LONG else []
        elif is_view(one) and one is not os.environ:  # that takes long, and holds texts alone
            items = items_in(one)
            items = items if len(items) <= LONG else []
        objects = [item for item in items if type(item[1]) not in _PLAIN]
        return HeldObject(path, one, items, objects)


def holdings(
    variables: Iterable[Mapping[str, Any]],
    own: frozenset[str],
    *,
    items: Iterable[tuple[str, Any]] = (),
    idle_hooks: bool = True,
    resting: Resting | None = None,
    last: Set[str] = frozenset(),
    looked_into: LookedInto = MappingProxyType({}),
    passed: PassedOver = NOTHING,
    beside: Iterable[tuple[str, Any]] = (),
) -> Holdings:
    """All that hangs on these variables, on the script's modules, `own`, and on modules that no
    file was read for. What hangs on `items` of loops alone, variables with their values, has no
    name. Without `idle_hooks` dicts of hooks that hold none are left out: each module of torch has
    a dozen. Of a module for which `resting` counts some objects these are passed over. What hangs
    on the variables `last` has another name, if it hangs on others, too, and so has what hangs on
    objects `beside` them, each with the name that it has here. What lies in `passed` is not walked
    through.
    """
    passing = {(name, id(one)): one for name, one in items}
    walk = _Walk(own, idle=idle_hooks, resting=resting, looked_into=looked_into)
    walk.found.passed = passed
    walk.found.held += [("os.environ", os.environ), ("context variables", Variables())]
    made = made_by_script(own)
    named = sorted(own & sys.modules.keys() | made, key=lambda name: (name != "__main__", name))
    spaces = [(name, vars(sys.modules[name])) for name in named]
    walk.found.held += [(name, names) for name, names in spaces if name in made - own]
    walk.todo.extend((key.name, one) for key, one in contextvars.copy_context().items())
    late: list[tuple[str, Any]] = []
    for space, names in [*(("", names) for names in variables), *spaces]:
        for name, value in list(names.items()):
            left_out = name.startswith("__") or name in passed.variables
            if not left_out and (name, id(value)) not in passing:
                one = f"{space}.{name}" if space else name, value
                (late if name in last else walk.todo).append(one)
        walk.on()
    for rest in (late, beside, [("", one) for one in passing.values()]):
        walk.todo.extend(rest)
        walk.on()
    return walk.found


class _Walk:
    """Goes from one object to those that it holds, each once.

    By their types alone: a proxy may load what it stands for when it is asked for its class.
    """

    def __init__(
        self,
        own: frozenset[str],
        *,
        idle: bool,
        resting: Resting | None,
        looked_into: LookedInto,
    ) -> None:
        self._own = own
        self._looked_into = looked_into
        self._idle = idle
        self._resting = resting
        self._most = MOST
        self._seen: dict[int, Any] = {}
        self._ways: dict[Any, Way | None] = dict.fromkeys(PLAIN)
        self._left = ALL_BYTES
        self.todo: deque[tuple[str, Any]] = deque()
        self.found = Holdings()

    def on(self) -> None:
        todo, ways, seen = self.todo, self._ways, self._seen  # thousands go through here
        while todo and len(seen) < self._most:
            path, one = todo.popleft()
            kind, number = type(one), id(one)
            if number in seen:
                continue
            way = ways[kind] if kind in ways else self._learn(kind)
            if way is not None:
                seen[number] = one
                way(path if len(path) <= LONG_PATH else "", one)

    def _learn(self, kind: Any) -> Way | None:
        self._ways[kind] = way = self._way(kind)
        return way

    def _way(self, kind: Any) -> Way | None:
        """The treatment of objects of that type."""
        own = is_defined_in(kind, self._own)
        for base in CONTAINERS:
            if issubclass(kind, base):
                return functools.partial(self._at_container, base, own)
        for base, way in self._kinds():
            if issubclass(kind, base):
                return way
        if own or issubclass(kind, WRAPPERS):
            return self._at_instance
        for library, names in self._looked_into.items():
            if issubclass(kind, library):
                return functools.partial(self._at_attributes, names) if names else self._at_instance
        return self._at_source if gives_items(kind) else None

    def _kinds(self) -> list[tuple[Any, Way]]:
        return [
            (torch.Tensor, self._at_tensor),
            (array_kinds(), self._at_array),
            (bytearray | array.array, self._at_bytes),
            (RAW, lambda path, one: self._hold_bytes(path, one, ctypes.sizeof(one))),
            (type, self._at_class),
            (nn.Module, self._at_module),
            (FunctionType, self._at_function),
            (MethodType, lambda path, one: self._go(path, __self__=one.__self__, f=one.__func__)),
            (partial, self._at_partial),
            (subprocess.Popen, lambda path, one: self._go(path, stdout=one.stdout)),
            (CellType, lambda path, one: self._number(path, gc.get_referents(one))),
            (MappingProxyType, lambda path, one: self._number(path, behind_proxy(one))),
            (CACHE, lambda path, one: self._number(path, behind_cache(one))),
            (ITERATORS, self._at_iterator),
            (property, lambda path, one: self._go(path, fget=one.fget, fset=one.fset)),
            (classmethod | staticmethod, lambda path, one: self._go(path, f=one.__func__)),
        ]

    def _go(self, path: str, **inner: Any) -> None:
        """Go on to what an object holds, by name."""
        self._go_on(path, inner)

    def _go_on(self, path: str, inner: Mapping[str, Any]) -> None:
        self.todo.extend((path and f"{path}.{name}", one) for name, one in inner.items())

    def _number(self, path: str, inner: Iterable[Any]) -> None:
        ways, add = self._ways, self.todo.append
        for place, one in enumerate(inner):
            if ways.get(type(one), one) is not None:  # else there is no need of a name
                add((path and f"{path}[{place}]", one))

    def _hold(self, path: str, one: Any) -> None:
        self.found.held.append((path, one))

    def _at_tensor(self, path: str, one: torch.Tensor) -> None:
        self._hold_bytes(path, one, one.numel() * one.element_size(), _is_plain(one))
        self._go(path, _backward_hooks=one._backward_hooks)
        if (given := given_to(one)) is not None:
            self._hold(path := path and f"{path}{OF_TENSORS}", given)
            self._go_on(path, given)

    def _at_array(self, path: str, one: Any) -> None:
        can = one.flags.writeable and type(one) in array_kinds()
        self._hold_bytes(path, one, one.nbytes, can)
        if one.dtype.hasobject and one.size <= LONG:
            self._number(path, one.flat)

    def _at_bytes(self, path: str, one: Any) -> None:
        self._hold_bytes(path, one, memoryview(one).nbytes)

    def _at_class(self, path: str, one: Any) -> None:
        if one.__module__ in self._own:
            self._hold(path, one)
            self._go_on(path, dict(vars(one)))

    def _at_function(self, path: str, one: Any) -> None:
        if one.__module__ in self._own:
            self._hold(path, one)  # it may be given attributes
            self._go_on(path, Function(one))

    def _at_partial(self, path: str, one: Any) -> None:
        self._hold(path, one)
        self._go(path, func=one.func, args=one.args, keywords=one.keywords)

    def _at_iterator(self, path: str, one: Any) -> None:
        self.found.iterators.append((path, one))
        self._number(path, gc.get_referents(one))

    def _at_source(self, path: str, one: Any) -> None:
        self.found.sources.append((path, one))

    def _at_container(self, plain: Any, own: bool, path: str, one: Any) -> None:
        """Note a container by the methods of the `plain` kind: those of a class of the script's may
        do more.
        """
        size = plain.__len__(one)
        if not (size or self._idle) and path.endswith(OF_HOOKS):
            return
        if size <= VERY_LONG and plain not in (tuple, frozenset):
            self._hold(path, one)
        elif size <= LONG and plain is tuple:
            self.found.tuples.append((path, one))
        if size <= LONG and plain is dict:
            ways, passed = self._ways, self.found.passed
            for key, value in list(dict.items(one)):
                kind = type(value)
                owner = self.found.owners.get(id(one)) if key in passed.names else None
                if key in passed.names and passed.lies_at(path, key, owner):
                    continue
                if kind in ways and ways[kind] is None:
                    continue  # there is no need of a name
                if kind in _HOOK_KINDS and not (value or self._idle):
                    if type(key) is str and key.endswith(OF_HOOKS):
                        continue
                self.todo.append((inside(path, key), value))
        elif size <= LONG:
            ordered = plain not in (set, frozenset)
            self._number(path if ordered else "", list(plain.__iter__(one)))
        if own:
            self._at_instance(path and f"{path}.", one)

    def _hold_bytes(self, path: str, one: Any, size: int, can: bool = True) -> None:
        if can and size <= min(SMALL_BYTES, self._left):
            self._left -= size
            self._hold(path, one)

    def _at_instance(self, path: str, one: Any) -> None:
        local = isinstance(one, threading.local)  # has a dict for each thread
        try:
            attributes = one.__dict__ if local else object.__getattribute__(one, "__dict__")
        except AttributeError:
            attributes = None
        if isinstance(attributes, dict):
            self.found.owners[id(attributes)] = type(one)
            self.todo.append((path, attributes))
        kind: Any = type(one)
        if slots := slots_of(kind):
            self._hold(path, one)
            self._go_on(path, Slots(one, slots))

    def _at_attributes(self, names: Iterable[str], path: str, one: Any) -> None:
        self._go(path, **{name: vars(one)[name] for name in names if name in vars(one)})

    def _at_module(self, path: str, module: nn.Module) -> None:
        """torch's own wrappers keep books of their own on themselves."""
        kind = kind_of(module)
        if kind is nn.Module:
            self._go(path, _modules=module._modules)
            return
        self.found.modules.append((path, module))
        passed = self._resting(path, module) if self._resting is not None else 0
        self._most -= passed  # so that a walk ends where one that sees them does
        if passed:
            self._go(path, kind=kind)
        else:
            self._go(path, vars=vars(module), kind=kind)


def inside(path: str, key: Any) -> str:
    """The name of an entry; "" where the text of its key does not say which one it is."""
    return _entry(path, key) if path and type(key) in _PLAIN else ""


@functools.lru_cache(maxsize=1 << 16, typed=True)
def _entry(path: str, key: Any) -> str:
    """One text from walk to walk: many look it up, and its hash is known."""
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def _is_plain(tensor: torch.Tensor) -> bool:
    """True of no parameter, and of nothing that has to be asked of somebody else."""
    if tensor.requires_grad or tensor.is_inference() or tensor.layout is not torch.strided:
        return False
    return type(tensor) is torch.Tensor and tensor.device.type != "meta"
