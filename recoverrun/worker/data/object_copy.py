"""Deep copies of data sets and samplers, so that reading them leaves the script's own unchanged.

An iterable data set may keep its position in itself: a counter, tokens that are still to come, a
reader in another object. A sampler may shuffle a list in place; a data set may count its reads. So
everything that may change is copied as far as possible: containers, generators of random numbers,
open files, objects of plain Python classes. What is large (rows, tensors) or foreign (handles of
libraries) is shared. No code of the script runs here.
"""

import collections
import copy
import functools
import io
import itertools
import queue
import sys
import threading
import types
from collections.abc import Callable, Container, Iterator
from hashlib import blake2b
from typing import Any

import torch

from recoverrun.worker.data.numpy_arrays import is_plain_array
from recoverrun.worker.rng import object_generators
from recoverrun.worker.rng.streams import tensor_bytes

MAX_OBJECTS = 20_000
"""The most objects that are copied, which takes some 50 ms; the rest is shared."""

MAX_ITEMS = 1_000
"""The items of a larger container are shared: they are rows, not a position."""

MAX_SHALLOW_ITEMS = 4_000_000
"""A container that is larger still is shared itself."""

ARRAY_BYTES = 1 << 24
"""Larger tensors and arrays are shared: they are rows, not buffers."""

IMMUTABLE: frozenset[type] = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice, type}
)
"""Values of these types cannot change."""

ITERATOR_MODULES = frozenset({"builtins", "itertools"})
"""Modules whose iterators cannot be copied in general."""

EPOCH_NAMES = frozenset({"epoch", "_epoch"})
"""Attributes that hold the number of a pass."""

RESTARTING = frozenset({"datasets"})
"""Libraries whose data sets begin anew in every pass, whatever they keep of the pass before."""

COUNTERS: tuple[type, ...] = (itertools.count, type(iter([])), type(iter(())), type(iter(range(0))))
"""Iterators of `ITERATOR_MODULES` that can be copied."""


class NotCopyable(Exception):
    """An object holds something that may change and cannot be copied; the text says what."""


def copied(owner: Any) -> Any:
    """Return a deep copy of `owner`. Raises NotCopyable."""
    try:
        return ObjectCopier(strict=True).of(owner)
    except RecursionError as error:
        raise NotCopyable("objects within objects, too deep to be copied") from error


def position_digest(owner: Any) -> bytes:
    """Return a digest of all that `copied` would copy, except the number of a pass.

    The script sets that number alike on all ranks.
    """
    digest, known, todo = blake2b(digest_size=16), set[int](), [owner]
    while todo and len(known) < MAX_OBJECTS:
        value = todo.pop()
        kind = type(value)
        digest.update(kind.__name__.encode())
        if kind in IMMUTABLE:
            digest.update(repr(value).encode())
        elif id(value) in known:
            continue
        elif object_generators.is_generator(value):
            state = object_generators.state_of(value)
            digest.update(tensor_bytes(state) if isinstance(state, torch.Tensor) else state)
        elif kind is torch.Tensor or is_plain_array(value):
            digest.update(str(value.shape).encode() + repr(value).encode())
        elif isinstance(value, set) and set(map(type, value)) <= IMMUTABLE:
            digest.update(repr(sorted(map(repr, value))).encode())
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | collections.deque) and len(value) <= MAX_ITEMS:
            todo += value
        elif isinstance(value, list | tuple | collections.deque):
            digest.update(str(len(value)).encode())
        elif not is_foreign(kind) and _root(kind) not in RESTARTING:
            held = attributes_of(value) or {}
            todo += [part for name, part in sorted(held.items()) if name not in EPOCH_NAMES]
        known.add(id(value))
    return digest.digest()


class ObjectCopier:
    """Copies several objects, which share in the copy what they share in the original.

    What may change and cannot be copied raises NotCopyable if `strict` is true; otherwise it is
    shared, like objects whose identities are `seen`.
    """

    def __init__(self, *, strict: bool, seen: Container[int] = ()) -> None:
        self._strict = strict
        self._seen = seen
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # alive, so that no identity comes twice
        self._left = MAX_OBJECTS

    def share(self, value: Any) -> None:
        """Share `value`: it is not copied."""
        self._made[id(value)] = value

    def of(self, value: Any) -> Any:
        """Return a copy. Raises NotCopyable, and RecursionError for what is too deep."""
        kind = type(value)
        if (
            kind in IMMUTABLE
            or isinstance(value, type | types.ModuleType)
            or id(value) in self._seen
        ):
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        make = self._copier_of(value, kind)
        if make is None or self._left <= 0:
            return value
        self._left -= 1
        self._kept.append(value)
        try:
            return make(value)
        except NotCopyable:
            if self._strict:
                raise
            return value

    def _copier_of(self, value: Any, kind: type) -> Callable[[Any], Any] | None:
        """Return the function that copies `value`; None if it is shared."""
        if kind in self._CONTAINERS:
            many = hasattr(value, "__len__") and len(value) > MAX_SHALLOW_ITEMS
            return None if many else functools.partial(self._CONTAINERS[kind], self)
        if object_generators.is_generator(value):
            return self._simply(copy.deepcopy if not _of_torch(value) else _generator)
        if isinstance(value, io.IOBase):
            return self._simply(_reopened)
        if kind in COUNTERS or kind in (bytearray, types.SimpleNamespace):
            return self._simply(copy.copy)
        if isinstance(value, queue.Queue | queue.SimpleQueue | threading.Thread) or _is_consumed(
            value
        ):
            return _refuse
        if kind is torch.Tensor or is_plain_array(value):
            return self._simply(_array)
        if kind.__flags__ & _HEAP and not is_foreign(kind):
            return self._object
        return None

    def _simply(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def made(value: Any) -> Any:
            clone = self._made[id(value)] = make(value)
            return clone

        return made

    # --------------------------------------------------------------------------- containers

    def _list(self, value: Any) -> Any:
        """Copy a list or a deque."""
        clone = self._made[id(value)] = copy.copy(value)
        if len(value) <= MAX_ITEMS and not set(map(type, value)) <= IMMUTABLE:
            clone.clear()
            clone.extend(self.of(item) for item in value)
        return clone

    def _dict(self, value: Any) -> Any:
        clone = self._made[id(value)] = copy.copy(value)
        if len(value) <= MAX_ITEMS and not set(map(type, value.values())) <= IMMUTABLE:
            for key, item in value.items():
                clone[key] = self.of(item)
        return clone

    def _set(self, value: Any) -> Any:
        clone = self._made[id(value)] = copy.copy(value)
        return clone

    def _tuple(self, value: Any) -> Any:
        if len(value) > MAX_ITEMS:
            return value
        parts = [self.of(item) for item in value]
        same = all(part is item for part, item in zip(parts, value, strict=True))
        clone = self._made[id(value)] = value if same else tuple(parts)
        return clone

    def _method(self, value: Any) -> Any:
        clone = types.MethodType(value.__func__, self.of(value.__self__))
        self._made[id(value)] = clone
        return clone

    def _partial(self, value: Any) -> Any:
        arguments = [self.of(argument) for argument in value.args]
        named = {name: self.of(argument) for name, argument in value.keywords.items()}
        clone = functools.partial(self.of(value.func), *arguments, **named)
        self._made[id(value)] = clone
        return clone

    _CONTAINERS: dict[type, Callable[["ObjectCopier", Any], Any]] = {
        list: _list,
        collections.deque: _list,
        dict: _dict,
        collections.OrderedDict: _dict,
        collections.defaultdict: _dict,
        collections.Counter: _dict,
        set: _set,
        tuple: _tuple,
        types.MethodType: _method,
        functools.partial: _partial,
    }

    # --------------------------------------------------------------------------- objects

    def _object(self, value: Any) -> Any:
        """Copy all attributes and slots; `copy.copy` takes only what the class wants pickled."""
        try:
            clone = object.__new__(type(value))
        except TypeError:  # made by C code, in part
            return value
        self._made[id(value)] = clone
        held = attributes_of(value)
        if held is not None:
            attributes = attributes_of(clone)
            assert attributes is not None, "of the same class"
            attributes.update({name: self.of(part) for name, part in held.items()})
        for slot in _slots(type(value)):
            try:
                kept = object.__getattribute__(value, slot)
            except AttributeError:
                continue
            object.__setattr__(clone, slot, self.of(kept))
        return clone


_HEAP = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: the class is made by Python code."""


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object itself; None if it has none."""
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        named = vars(base).get("__slots__", ())
        for name in (named,) if isinstance(named, str) else tuple(named):
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def is_foreign(kind: type) -> bool:
    """True for classes of the standard library, or with a `__del__`, which must run once."""
    root = _root(kind)
    standard = root in sys.stdlib_module_names and root != "__main__"
    return standard or hasattr(kind, "__del__") or issubclass(kind, torch.nn.Module | BaseException)


def _is_consumed(value: Any) -> bool:
    """True for an iterator whose items are gone once they are given, and that has no copy."""
    kind = type(value)
    return hasattr(kind, "__next__") and kind.__module__ in ITERATOR_MODULES


def _refuse(value: Any) -> Any:
    raise NotCopyable(f"an object of the kind {type(value).__name__}, which cannot be copied")


def _of_torch(value: Any) -> bool:
    return isinstance(value, torch.Generator)


def _generator(value: torch.Generator) -> torch.Generator:
    clone = torch.Generator(value.device)
    clone.set_state(value.get_state())
    return clone


def _array(value: Any) -> Any:
    """Return a copy of an array that is small and in the memory of the host."""
    if isinstance(value, torch.Tensor):
        usual = value.device.type == "cpu" and value.layout == torch.strided
        return value.detach().clone() if usual and value.nbytes <= ARRAY_BYTES else value
    return value.copy() if value.nbytes <= ARRAY_BYTES else value


def _reopened(file: Any) -> Any:
    """Open the same file at the same position. Raises NotCopyable."""
    plain = type(file) in (io.TextIOWrapper, io.BufferedReader, io.FileIO)
    try:
        if file.closed:
            return file
        if not plain or not isinstance(file.name, str) or not file.readable() or file.writable():
            raise NotCopyable(f"an open {type(file).__name__}, which cannot be opened once more")
        clone: Any
        if isinstance(file, io.TextIOWrapper):
            clone = open(file.name, encoding=file.encoding, errors=file.errors)
        else:
            buffering = 0 if isinstance(file, io.FileIO) else -1
            clone = open(file.name, "rb", buffering=buffering)
        clone.seek(file.tell())
    except (OSError, ValueError) as error:
        raise NotCopyable(f"an open file, which cannot be opened once more ({error})") from error
    return clone
