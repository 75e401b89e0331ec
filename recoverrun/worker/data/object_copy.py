"""What data sets and samplers hold, copied: reading as another rank must leave the script's alone.

A stream may keep its place in itself: a counter, tokens that are still to be given, a reader in
another object. A sampler may shuffle a list in place, a data set count how often it was asked. Who
reads copies of them must move what the copies hold. So everything that can move is copied, as far
as it can be: containers, generators of random numbers, open files, objects of plain Python classes.
What is large (rows, tensors) or foreign (handles of libraries) is shared. No code of the script
runs here.
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
from typing import Any, TypeVar

import torch

from recoverrun.worker.rng import object_generators
from recoverrun.worker.rng.streams import tensor_bytes

MAX_OBJECTS = 20_000
"""So many objects are copied, which takes some 50 ms; what is left is shared."""

MAX_ITEMS = 1_000
"""What is in a container that is larger is shared: rows, not a place."""

MAX_SHALLOW_ITEMS = 4_000_000
"""A container that is larger still is shared itself."""

ARRAY_BYTES = 1 << 24
"""Tensors and arrays that are larger are rows, not buffers."""

IMMUTABLE: frozenset[type] = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice, type}
)
"""Values of these cannot move."""

ITERATOR_MODULES = frozenset({"builtins", "itertools"})
"""Modules whose iterators cannot be copied in general."""

EPOCH_NAMES = frozenset({"epoch", "_epoch"})
"""Attributes that number a pass."""

RESTARTING = frozenset({"datasets"})
"""Libraries whose streams begin anew in every pass, whatever they note of the one before."""

COUNTERS: tuple[type, ...] = (itertools.count, type(iter([])), type(iter(())), type(iter(range(0))))
"""But these can."""


T = TypeVar("T")


class NotCopyable(Exception):
    """Something in it moves and cannot be copied; the text says what it holds."""


def shallow_copy(owner: T) -> T:
    """A shallow copy with attributes of its own: some `__setstate__` keep those of `owner`."""
    twin = copy.copy(owner)
    if vars(twin) is vars(owner):
        object.__setattr__(twin, "__dict__", dict(vars(owner)))
    return twin


def copied(owner: Any) -> Any:
    """A copy of `owner`. Raises NotCopyable."""
    try:
        return Copier(strict=True).of(owner)
    except RecursionError as error:
        raise NotCopyable("objects within objects, too deep to be copied") from error


def position_digest(owner: Any) -> bytes:
    """A digest of where `owner` stands: of what `copied` would copy, but for the number of a pass,
    which all ranks are told alike.
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
        elif kind is torch.Tensor or _is_array(value):
            digest.update(str(value.shape).encode() + repr(value).encode())
        elif isinstance(value, set) and set(map(type, value)) <= IMMUTABLE:
            digest.update(repr(sorted(map(repr, value))).encode())
        elif isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | collections.deque) and len(value) <= MAX_ITEMS:
            todo += value
        elif isinstance(value, list | tuple | collections.deque):
            digest.update(str(len(value)).encode())
        elif not _is_foreign(kind) and _root(kind) not in RESTARTING:
            held = _attributes(value) or {}
            todo += [one for name, one in sorted(held.items()) if name not in EPOCH_NAMES]
        known.add(id(value))
    return digest.digest()


class Copier:
    """Of several objects, which go on sharing what they share.

    If it is `strict`, what moves and cannot be copied raises NotCopyable; else it is shared, as are
    those whose identities are `seen`.
    """

    def __init__(self, *, strict: bool, seen: Container[int] = ()) -> None:
        self._strict = strict
        self._seen = seen
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # alive, so that no identity comes twice
        self._left = MAX_OBJECTS

    def share(self, value: Any) -> None:
        """This one is not to be copied."""
        self._made[id(value)] = value

    def of(self, value: Any) -> Any:
        """Raises NotCopyable, and RecursionError for what is too deep."""
        kind = type(value)
        if (
            kind in IMMUTABLE
            or isinstance(value, type | types.ModuleType)
            or id(value) in self._seen
        ):
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        make = self._way(value, kind)
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

    def _way(self, value: Any, kind: type) -> Callable[[Any], Any] | None:
        """How it is copied; None if it is shared."""
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
        if kind is torch.Tensor or _is_array(value):
            return self._simply(_array)
        if kind.__flags__ & _HEAP and not _is_foreign(kind):
            return self._object
        return None

    def _simply(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def made(value: Any) -> Any:
            twin = self._made[id(value)] = make(value)
            return twin

        return made

    # --------------------------------------------------------------------------- containers

    def _list(self, value: Any) -> Any:
        """Also a deque."""
        twin = self._made[id(value)] = copy.copy(value)
        if len(value) <= MAX_ITEMS and not set(map(type, value)) <= IMMUTABLE:
            twin.clear()
            twin.extend(self.of(one) for one in value)
        return twin

    def _dict(self, value: Any) -> Any:
        twin = self._made[id(value)] = copy.copy(value)
        if len(value) <= MAX_ITEMS and not set(map(type, value.values())) <= IMMUTABLE:
            for key, one in value.items():
                twin[key] = self.of(one)
        return twin

    def _set(self, value: Any) -> Any:
        twin = self._made[id(value)] = copy.copy(value)
        return twin

    def _tuple(self, value: Any) -> Any:
        if len(value) > MAX_ITEMS:
            return value
        parts = [self.of(one) for one in value]
        same = all(one is other for one, other in zip(parts, value, strict=True))
        twin = self._made[id(value)] = value if same else tuple(parts)
        return twin

    def _method(self, value: Any) -> Any:
        twin = types.MethodType(value.__func__, self.of(value.__self__))
        self._made[id(value)] = twin
        return twin

    def _partial(self, value: Any) -> Any:
        arguments = [self.of(one) for one in value.args]
        named = {name: self.of(one) for name, one in value.keywords.items()}
        twin = functools.partial(self.of(value.func), *arguments, **named)
        self._made[id(value)] = twin
        return twin

    _CONTAINERS: dict[type, Callable[["Copier", Any], Any]] = {
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
        """Not by `copy.copy`: what a class says there is for pickling, and leaves things out."""
        try:
            twin = object.__new__(type(value))
        except TypeError:  # made by C code, in part
            return value
        self._made[id(value)] = twin
        held = _attributes(value)
        if held is not None:
            own = _attributes(twin)
            assert own is not None, "of the same class"
            own.update({name: self.of(one) for name, one in held.items()})
        for slot in _slots(type(value)):
            try:
                kept = object.__getattribute__(value, slot)
            except AttributeError:
                continue
            object.__setattr__(twin, slot, self.of(kept))
        return twin


_HEAP = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: the class is made by Python code."""


def _attributes(value: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


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


def _is_foreign(kind: type) -> bool:
    """Of Python's own library, or with an end of its own, which must come once."""
    root = _root(kind)
    own = root in sys.stdlib_module_names and root != "__main__"
    return own or hasattr(kind, "__del__") or issubclass(kind, torch.nn.Module | BaseException)


def _is_consumed(value: Any) -> bool:
    """An iterator whose items are gone once they are given, and that has no copy."""
    kind = type(value)
    return hasattr(kind, "__next__") and kind.__module__ in ITERATOR_MODULES


def _refuse(value: Any) -> Any:
    raise NotCopyable(f"an object of the kind {type(value).__name__}, which cannot be copied")


def _of_torch(value: Any) -> bool:
    return isinstance(value, torch.Generator)


def _generator(value: torch.Generator) -> torch.Generator:
    twin = torch.Generator(value.device)
    twin.set_state(value.get_state())
    return twin


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None)


def _array(value: Any) -> Any:
    """A copy of one that is small, and lies in the memory of the host."""
    if isinstance(value, torch.Tensor):
        usual = value.device.type == "cpu" and value.layout == torch.strided
        return value.detach().clone() if usual and value.nbytes <= ARRAY_BYTES else value
    return value.copy() if value.nbytes <= ARRAY_BYTES else value


def _reopened(file: Any) -> Any:
    """The same file at the same place. Raises NotCopyable."""
    plain = type(file) in (io.TextIOWrapper, io.BufferedReader, io.FileIO)
    try:
        if file.closed:
            return file
        if not plain or not isinstance(file.name, str) or not file.readable() or file.writable():
            raise NotCopyable(f"an open {type(file).__name__}, which cannot be opened once more")
        twin: Any
        if isinstance(file, io.TextIOWrapper):
            twin = open(file.name, encoding=file.encoding, errors=file.errors)
        else:
            buffering = 0 if isinstance(file, io.FileIO) else -1
            twin = open(file.name, "rb", buffering=buffering)
        twin.seek(file.tell())
    except (OSError, ValueError) as error:
        raise NotCopyable(f"an open file, which cannot be opened once more ({error})") from error
    return twin
