"""The context of a slot, captured as plain values: all that makes a microbatch the microbatch of
its slot.

A context is what a survivor needs to run code as another rank: where that rank's random streams and
generators stand, the simple variables and small tensors that the region of code can see, the simple
members of the script's own objects (`object_members`), and where its data iterators stand. It
travels as msgpack, never as pickle, and it is left in shared memory before the work begins, so that
a SIGKILL cannot take it. Every rank captures at the same points, so that contexts compare
(`lost_rank`).
"""

import functools
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

import msgpack

from recoverrun.worker.context import fingerprints, recurrent_state
from recoverrun.worker.context.object_members import contents, is_framework, is_own, is_owner
from recoverrun.worker.context.values import (
    FIXED,
    copied,
    is_kept,
    is_simple,
    is_small_tensor,
    pack,
    unpack,
)
from recoverrun.worker.data.iterator_origin import Origin
from recoverrun.worker.rng.object_generators import State
from recoverrun.worker.rng.streams import Streams

CARRIED_TENSOR_BYTES = 1 << 20
"""The size of the largest tensor that is captured where one iteration hands it to the next, as a
batch fetched ahead.
"""

ATTRIBUTE_TENSOR_BYTES = 1 << 12
"""The size of the largest tensor attribute that is captured: a larger one holds data."""

DEPTH = 4
"""Levels of objects within objects that are captured."""

MOST_OWNERS = 2_000
"""The number of objects whose members are captured; others are no part of a context."""

CODE = frozenset({FunctionType, BuiltinFunctionType, ModuleType, type})
"""Kinds that most variables of a module have: code, not data."""

PLAIN = frozenset({BuiltinFunctionType, ModuleType, str, int, float, bool, type(None)})
"""Kinds of what has no members."""

Path = tuple[str, ...]
Key = str | Path
"""A variable by name, or an attribute by path."""

Kind = Literal["top", "after"]
KINDS: tuple[Kind, ...] = ("top", "after")
AFTER = KINDS.index("after")
"""Captured as the iteration of a microbatch begins, or as its backward has ended."""

Point = tuple[int, int, int, int]
"""Transaction, microbatch, place in `KINDS`, iterations since the last backward. Grows."""

STREAM = "the stream of"

DEVICE_WORDS = ("local", "device", "gpu", "cuda")
"""A name with one of these belongs to the executing process: its hardware, not its data."""


@dataclass(slots=True)
class Context:
    step: int  # the transaction
    index: int  # of the microbatch in it
    kind: Kind
    attempt: int  # iterations that began since the last backward
    loop: str  # whose body begins
    streams: Streams
    names: dict[str, Any] = field(default_factory=dict)
    attributes: dict[Path, Any] = field(default_factory=dict)
    generators: dict[str, State] = field(default_factory=dict)  # of the `registry`
    loaders: dict[int, Origin] = field(default_factory=dict)  # number -> where it was created
    alone_at: frozenset[str] = frozenset()  # code for this rank alone that has drawn numbers
    made: dict[str, Any] = field(default_factory=dict)  # numbers of the iteration, at its backward
    behind: dict[Key, Any] = field(default_factory=dict)  # what the rest of the iteration makes

    def pack(self) -> bytes:
        body = {
            "point": [self.step, self.index, KINDS.index(self.kind), self.attempt],
            "loop": self.loop,
            "streams": self.streams.pack(),
            "names": {name: pack(value) for name, value in self.names.items()},
            "attributes": [[list(p), pack(v)] for p, v in self.attributes.items()],
            "generators": {key: pack(state) for key, state in self.generators.items()},
            "loaders": [[number, origin.pack()] for number, origin in self.loaders.items()],
            "alone_at": sorted(self.alone_at),
            "made": {name: pack(value) for name, value in self.made.items()},
            "behind": [[told(key), pack(value)] for key, value in self.behind.items()],
        }
        return bytes(msgpack.packb(body, use_bin_type=True))

    @staticmethod
    def unpack(packed: bytes) -> "Context":
        """Raises ValueError if `packed` is not a context."""
        try:
            body = msgpack.unpackb(packed, raw=False, strict_map_key=True)
            keys = [*body["names"], *body["generators"], *body["made"]]
            if not all(type(key) is str for key in keys):
                raise ValueError("not a context: wrong names")
            step, index, kind, attempt = map(int, body["point"])
            return Context(
                step=step,
                index=index,
                kind=KINDS[kind],
                attempt=attempt,
                loop=str(body["loop"]),
                streams=Streams.unpack(body["streams"]),
                names={name: unpack(value) for name, value in body["names"].items()},
                attributes={tuple(path): unpack(v) for path, v in body["attributes"]},
                generators={key: unpack(state) for key, state in body["generators"].items()},
                loaders={n: Origin.unpack(packed) for n, packed in body["loaders"]},
                alone_at=frozenset(map(str, body["alone_at"])),
                made={name: unpack(value) for name, value in body["made"].items()},
                behind={key_of(said): unpack(value) for said, value in body["behind"]},
            )
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise ValueError(f"not a context: {error!r}") from error

    @property
    def point(self) -> Point:
        """The point of the capture."""
        return self.step, self.index, KINDS.index(self.kind), self.attempt

    @property
    def values(self) -> "dict[Key, Any]":
        """Variables and attributes."""
        found: dict[Key, Any] = {}
        for part in (self.names, self.attributes):
            found |= dict(part.items())
        return found

    def with_values(self, values: "Mapping[Key, Any]") -> "Context":
        """The same with these variables and attributes in place of its own."""
        names = {key: value for key, value in values.items() if isinstance(key, str)}
        attributes = {key: value for key, value in values.items() if not isinstance(key, str)}
        return replace(self, names=names, attributes=attributes)


def values_of(names: Mapping[str, Any], carried: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The simple values and small tensors among `names`; tensors are copied."""
    kept: dict[str, Any] = {}
    for name, value in names.items():
        kind: Any = type(value)
        if not is_kept(kind) or name[:2] == "__":
            continue
        if is_simple(value):
            kept[name] = value if kind in FIXED else copied(value)
        elif is_small_tensor(
            value, CARRIED_TENSOR_BYTES if name in carried else ATTRIBUTE_TENSOR_BYTES
        ):
            kept[name] = value.detach().clone()
        elif name in carried and recurrent_state.is_handed(value, CARRIED_TENSOR_BYTES):
            kept[name] = recurrent_state.without_graph(value)
    return kept


def attributes_of(
    names: Mapping[str, Any], modules: frozenset[str], data: Container[int] = ()
) -> dict[Path, Any]:
    """Simple members of what the script holds, as far as it can be reached from `names`, but not
    of `data`, by identity.
    """
    owners = owners_of(names, modules, data)
    return states_in((path, contents(owner)) for path, owner in owners)


def states_in(held: Iterable[tuple[Path, dict[str, Any]]]) -> dict[Path, Any]:
    """The simple members among what owners hold, each by its path."""
    return {
        member(path, name): value
        for path, inside in held
        for name, value in state_in(inside).items()
    }


@functools.lru_cache(maxsize=4096)
def member(path: Path, name: str) -> Path:
    """The path of a member. Contexts share them: each would hold as many tuples as values."""
    return (*path, name)


def state_in(held: dict[str, Any]) -> dict[str, Any]:
    """The simple values among members, and marks of those that are none."""
    return values_of(held) | fingerprints.marks(held, ATTRIBUTE_TENSOR_BYTES)


def owners_of(
    names: Mapping[str, Any], modules: frozenset[str], data: Container[int] = ()
) -> Iterator[tuple[Path, Any]]:
    """The objects with members of their own: instances of classes that the script's own `modules`
    define, models apart, these classes, functions that keep something, dicts that are no `data`,
    and short lists of such objects.
    """
    seen: set[int] = set()
    todo: deque[tuple[Path, Any]] = deque(
        ((name,), value)
        for name, value in names.items()
        if type(value) not in PLAIN and name[:2] != "__"
    )
    while todo and len(seen) < MOST_OWNERS:
        path, owner = todo.popleft()
        if type(owner) is MethodType:
            owner = owner.__self__
        if id(owner) in seen or id(owner) in data or type(owner) in PLAIN:
            continue
        if not is_owner(owner, modules):
            continue
        seen.add(id(owner))
        yield path, owner
        if len(path) < DEPTH:
            framework = is_framework(owner)
            for name, value in contents(owner).items():
                if type(value) not in PLAIN and (not framework or is_own(value, modules)):
                    todo.append(((*path, name), value))


def host(name: str) -> tuple[str, str]:
    """The name of a stream of `host_streams` among unknown values; no attribute is called so."""
    return (STREAM, name)


def last(key: Key) -> str:
    return key if isinstance(key, str) else key[-1]


def unmarked(key: Key) -> Key:
    """The key of what is marked under `key` (`fingerprints`)."""
    if isinstance(key, str):
        return key.removesuffix("#")
    return (*key[:-1], key[-1].removesuffix("#"))


@functools.lru_cache(maxsize=4096)
def belongs_to_process(name: str) -> bool:
    return any(word in name.lower() for word in DEVICE_WORDS)


def told(key: Key) -> str | list[str]:
    """A key as msgpack gives it back."""
    return key if isinstance(key, str) else list(key)


def key_of(said: str | list[str]) -> Key:
    return said if isinstance(said, str) else tuple(said)
