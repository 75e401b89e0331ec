"""What makes a microbatch the microbatch of its slot: its context, captured as plain values.

A context is what a survivor needs to run code as another rank: where that rank's random streams and
generators stand, the simple variables and small tensors that the region of code can see, the simple
attributes of the script's own objects, and where its data iterators stand. It travels as msgpack,
never as pickle, and it is left in shared memory before the work begins, so that a SIGKILL cannot
take it. Every rank captures at the same points, so that contexts compare (`lost`).
"""

import functools
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Literal

import msgpack
import torch

from recoverrun.hooks import bulk, handed, rng
from recoverrun.hooks.origins import Origin
from recoverrun.hooks.ownrng import State

CARRIED_TENSOR_BYTES = 1 << 20
"""A variable that one iteration hands to the next, such as a batch fetched ahead."""

ATTRIBUTE_TENSOR_BYTES = 1 << 12
"""Attributes are captured with every microbatch; larger ones hold data, not a position."""

FRAMEWORKS = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages whose objects keep count of the script's microbatches, as its own objects might."""

LONG_TEXT = 4096
LONG_SEQUENCE = 64
DEPTH = 4

CODE = frozenset({FunctionType, BuiltinFunctionType, ModuleType, type})
"""Kinds of most variables of a module: nothing of a microbatch is in them."""

KEPT = frozenset({str, int, float, bool, type(None), tuple, list, torch.Tensor})
"""Kinds of values that may be captured."""

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
    streams: rng.Streams
    names: dict[str, Any] = field(default_factory=dict)
    attributes: dict[Path, Any] = field(default_factory=dict)
    generators: dict[str, State] = field(default_factory=dict)  # of the `registry`
    loaders: dict[int, Origin] = field(default_factory=dict)  # number -> where it was created
    alone_at: frozenset[str] = frozenset()  # code for this rank alone that has drawn numbers

    def pack(self) -> bytes:
        body = {
            "point": [self.step, self.index, KINDS.index(self.kind), self.attempt],
            "loop": self.loop,
            "streams": self.streams.pack(),
            "names": {name: _pack(value) for name, value in self.names.items()},
            "attributes": [[list(p), _pack(v)] for p, v in self.attributes.items()],
            "generators": {key: _pack(state) for key, state in self.generators.items()},
            "loaders": [[number, origin.pack()] for number, origin in self.loaders.items()],
            "alone_at": sorted(self.alone_at),
        }
        return bytes(msgpack.packb(body, use_bin_type=True))

    @staticmethod
    def unpack(packed: bytes) -> "Context":
        """Raises ValueError if `packed` is not a context."""
        try:
            body = msgpack.unpackb(packed, raw=False, strict_map_key=True)
            keys = [*body["names"], *body["generators"]]
            if not all(type(key) is str for key in keys):
                raise ValueError("not a context: wrong names")
            step, index, kind, attempt = map(int, body["point"])
            return Context(
                step=step,
                index=index,
                kind=KINDS[kind],
                attempt=attempt,
                loop=str(body["loop"]),
                streams=rng.Streams.unpack(body["streams"]),
                names={name: _unpack(value) for name, value in body["names"].items()},
                attributes={tuple(path): _unpack(v) for path, v in body["attributes"]},
                generators={key: _unpack(state) for key, state in body["generators"].items()},
                loaders={n: Origin.unpack(packed) for n, packed in body["loaders"]},
                alone_at=frozenset(map(str, body["alone_at"])),
            )
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise ValueError(f"not a context: {error!r}") from error

    @property
    def point(self) -> Point:
        """When it was captured."""
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
        if type(value) not in KEPT or name.startswith("__"):
            continue
        if is_simple(value):
            kept[name] = _copied(value)
        elif is_small_tensor(
            value, CARRIED_TENSOR_BYTES if name in carried else ATTRIBUTE_TENSOR_BYTES
        ):
            kept[name] = value.detach().clone()
        elif name in carried and handed.is_handed(value, CARRIED_TENSOR_BYTES):
            kept[name] = handed.without_graph(value)
    return kept


def attributes_of(names: Mapping[str, Any], modules: frozenset[str]) -> dict[Path, Any]:
    """Simple attributes of the script's own objects that can be reached from `names`."""
    found: dict[Path, Any] = {}
    for path, owner in objects_of(names, modules):
        for name, value in state_of(owner).items():
            found[(*path, name)] = value
    return found


def state_of(owner: Any) -> dict[str, Any]:
    """The simple attributes of an object, and marks of those that are none."""
    return values_of(vars(owner)) | bulk.marks(vars(owner), ATTRIBUTE_TENSOR_BYTES)


def objects_of(names: Mapping[str, Any], modules: frozenset[str]) -> Iterator[tuple[Path, Any]]:
    """Instances of classes that the script's own `modules` define, models apart."""
    seen: set[int] = set()
    todo: list[tuple[Path, Any]] = [
        ((name,), value)
        for name, value in names.items()
        if type(value) not in CODE and not name.startswith("__")
    ]
    while todo:
        path, owner = todo.pop(0)
        if not is_own(owner, modules) or id(owner) in seen:
            continue
        seen.add(id(owner))
        yield path, owner
        if len(path) < DEPTH:
            todo += [((*path, name), value) for name, value in list(vars(owner).items())]


def is_framework(value: Any) -> bool:
    return _is_of_framework(type(value))


def _is_of_framework(kind: type[Any]) -> bool:
    return kind.__module__.partition(".")[0] in FRAMEWORKS


def is_own(value: Any, modules: frozenset[str]) -> bool:
    kind: Any = type(value)
    return _is_own_kind(kind, modules) and hasattr(value, "__dict__")


@functools.lru_cache(maxsize=4096)
def _is_own_kind(kind: Any, modules: frozenset[str]) -> bool:
    """Asked of every variable, several times in a step."""
    own = kind.__module__ in modules or _is_of_framework(kind)
    return own and not issubclass(kind, type | torch.nn.Module)


def is_simple(value: Any, depth: int = DEPTH) -> bool:
    """Of exactly the types that msgpack gives back: an enum would come back as its number."""
    kind = type(value)
    if kind is str:
        return len(value) <= LONG_TEXT and (value.isascii() or _is_unicode(value))
    if value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    if kind in (tuple, list):
        short = depth > 0 and len(value) <= LONG_SEQUENCE
        return short and all(is_simple(one, depth - 1) for one in value)
    return False


def _is_unicode(text: str) -> bool:
    """Whether it can be sent: the file system's undecodable bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_small_tensor(value: Any, limit: int = CARRIED_TENSOR_BYTES) -> bool:
    """A plain tensor that holds data: no parameter, no part of a graph, no DTensor."""
    if type(value) is not torch.Tensor or value.requires_grad or value.is_quantized:
        return False
    if value.layout is not torch.strided or value.device.type == "meta":
        return False
    return value.numel() * value.element_size() <= limit


def is_result(value: Any) -> bool:
    """A number that was computed with gradients: a running loss, to which code adds in place."""
    plain = type(value) is torch.Tensor and value.grad_fn is not None
    return plain and not value.is_quantized and value.numel() == 1


def same(one: Any, other: Any) -> bool:
    """Bit for bit: a NaN is itself, and True is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(rng.tensor_bytes(one.detach()) == rng.tensor_bytes(other.detach()))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return bool(one == other or (one != one and other != other))
    return bool(one == other)


def bits(value: Any) -> bytes:
    """For digests."""
    if isinstance(value, torch.Tensor):
        return rng.tensor_bytes(value.detach())
    return repr(value).encode(errors="replace")


def host(name: str) -> tuple[str, str]:
    """What a stream of `rng.HOSTS` is called among unknown values; no attribute is called so."""
    return (STREAM, name)


def last(key: Key) -> str:
    return key if isinstance(key, str) else key[-1]


def belongs_to_process(name: str) -> bool:
    return any(word in name.lower() for word in DEVICE_WORDS)


def put(owner: MutableMapping[str, Any], name: str, value: Any) -> None:
    """Give a captured `value` to the variable `name`; tensors are copied."""
    if bulk.is_mark(name):
        return
    if isinstance(value, torch.Tensor):
        present = owner.get(name)
        device = present.device if isinstance(present, torch.Tensor) else value.device
        owner[name] = value.to(device).clone()
    else:
        owner[name] = _copied(value)


def _copied(value: Any) -> Any:
    """Lists go on changing where they come from, and where they are put."""
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value


def resolve(names: Mapping[str, Any], path: Path) -> Any:
    """The object that owns the attribute `path[-1]`, or None if the way to it is gone."""
    owner = names.get(path[0])
    for name in path[1:-1]:
        owner = getattr(owner, name, None)
    return owner


# ----------------------------------------------------------------------------- plain values

_TUPLE, _TENSOR = "t", "T"


def told(key: Key) -> str | list[str]:
    """A key as msgpack gives it back."""
    return key if isinstance(key, str) else list(key)


def key_of(said: str | list[str]) -> Key:
    return said if isinstance(said, str) else tuple(said)


def _pack(value: Any) -> Any:
    """Lists stay lists; tuples and tensors are marked, since msgpack knows neither."""
    if isinstance(value, tuple):
        return {_TUPLE: [_pack(one) for one in value]}
    if isinstance(value, list):
        return [_pack(one) for one in value]
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg()
        dtype = str(plain.dtype).removeprefix("torch.")
        return {_TENSOR: [dtype, list(plain.shape), rng.tensor_bytes(plain)]}
    return value


def _unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack(one) for one in packed]
    if not isinstance(packed, dict):
        return packed
    if _TUPLE in packed:
        return tuple(_unpack(one) for one in packed[_TUPLE])
    dtype, shape, raw = packed[_TENSOR]
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"not a dtype: {dtype!r}")
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0)
    return (flat.view(kind) if raw else flat.to(kind)).reshape(shape)
