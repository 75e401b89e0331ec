"""Plain values and tensors apart: a nest of values as a manifest for msgpack, tensors by number.

No pickle: what arrives can be nothing but values of the kinds below, so a manifest executes no
code. What msgpack would give back as something else is marked by a map of one entry, whose key says
the kind. Tensors are not copied here: the manifest says their numbers, and the list holds the very
objects, which may be large and may still be in use.

The same tensor object met twice is one tensor again on the other side. Two tensors that share
memory, or a list that is met twice, come back apart. Tensors that both sides have, as the
parameters of a model, travel as their numbers: a list of parameters is one of them there, too.
"""

import enum
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import torch

from recoverrun.worker.arrival import value_kinds
from recoverrun.worker.arrival.sharded_tensors import LocalShard, is_distributed, like
from recoverrun.worker.context import values

Plain: TypeAlias = "None | bool | int | float | str | bytes | list[Plain] | dict[str, Plain]"
"""What msgpack gives back as it was."""

DEPTH = 64
"""Of values within values. A list that holds itself has no end."""

_MSGPACK_INTEGERS = range(-(1 << 63), 1 << 64)

_INTEGERS = frozenset({int})
_NAMES = frozenset({str, int})  # nothing is in them, and they are never refused
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_AS_THEY_ARE = frozenset({type(None), bool, float, bytes})
_SEQUENCES: dict[str, Any] = {"tuple": tuple, "torch.Size": torch.Size}
_SETS: dict[str, Any] = {"set": set, "frozenset": frozenset}
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_MARKS = {kind: name for table in (_SEQUENCES, _SETS, _DICTS) for name, kind in table.items()}

FACTORIES: dict[str, Any] = {
    one.__name__: one
    for one in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, deque)
}
"""Of a `defaultdict`: kinds that are called without arguments."""

DTYPES = {
    str(one).removeprefix("torch."): one for one in vars(torch).values() if type(one) is torch.dtype
}
"""By what torch calls them. To ask torch itself for a name may import a part of it."""

_NUMPY_DTYPE = re.compile(r"[<>|=][biufc]\d{1,2}")


class CannotTravel(Exception):
    """A value of a kind that is not packed; `path` says where it stands."""

    def __init__(self, kind: str, path: str) -> None:
        super().__init__(f"{path}: {kind} cannot travel")
        self.kind = kind
        self.path = path


def pack(value: object, tensors: list[torch.Tensor], name: str = "value") -> Plain:
    """Return `value` as plain values, and append to `tensors` those that are not in it yet.

    Raises CannotTravel, whose path begins with `name`; `tensors` may have grown nevertheless.
    """
    return Packing(tensors).pack(value, name)


def unpack(
    plain: object,
    tensors: Sequence[torch.Tensor],
    *,
    moved: bool = True,
    here: Sequence[torch.Tensor] = (),
) -> Any:
    """Return the value that `pack` was given, with `tensors` in the place of its own, and tensors
    that are `here` in the place of those that both sides have.

    A leaf that required a gradient is a new object on the same memory that does, too; all other
    tensors are the objects in `tensors`. With `moved`, those that lay on another device than the
    CPU are copied to the present one of its kind. Raises ValueError if `plain` is not what `pack`
    makes.
    """
    try:
        return _Unpacking(tensors, moved, here).value(plain, DEPTH)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"not a packed value: {error!r}") from error


class Packing:
    """Packs many values beside one list of tensors. The other side has those of `here`, too."""

    def __init__(self, tensors: list[torch.Tensor], here: Sequence[torch.Tensor] = ()) -> None:
        self.tensors = tensors
        self.here = here
        self._numbers = {id(one): number for number, one in enumerate(here)}
        self.sharded = False  # a DTensor was among them, of which the local part is packed
        self.names = [f"tensor {number}" for number in range(len(tensors))]  # where first met
        # With the objects themselves: the number of one that is gone may become another's id.
        self._met = {id(one): (number, one) for number, one in enumerate(tensors)}
        self._path: list[str | tuple[object]] = []  # keys are written only if somebody asks

    def pack(self, value: object, name: str = "value") -> Plain:
        """Pack as the function `pack` does."""
        self._path = [name]
        return self._packed(value)

    def is_here(self, value: object) -> bool:
        """True of a tensor that the other side has, too."""
        return id(value) in self._numbers

    def with_id(self, key: object) -> torch.Tensor | None:
        """The tensor that the other side has, too, and whose `id` here is `key`."""
        number = self._numbers.get(key) if type(key) is int else None
        return None if number is None else self.here[number]

    def has_any(self, numbers: Collection[int]) -> bool:
        """True if a tensor with one of these `id`s was packed, or is on the other side."""
        return not (
            self._met.keys().isdisjoint(numbers) and self._numbers.keys().isdisjoint(numbers)
        )

    def add(self, tensors: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        """Give tensors that were not packed yet, found under these names, the next numbers."""
        first = len(self.tensors)
        self._met.update((id(one), (first + at, one)) for at, one in enumerate(tensors))
        self.tensors += tensors
        self.names += names

    def _packed(self, value: Any) -> Plain:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            plain: Plain = value
            return plain
        if kind is str:
            return self._text(value)
        if kind is int:
            return value if value in _MSGPACK_INTEGERS else {"int": f"{value:x}"}
        if kind is list:
            return self._parts(value)
        if kind in _TENSORS or isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind in _MARKS:
            return {_MARKS[kind]: self._contents(value)}
        return self._rare(value)

    def _text(self, value: str) -> Plain:
        """File names may hold bytes that are no text."""
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"str": value.encode("utf-8", "surrogatepass")}
        return value

    def _contents(self, value: Any) -> Plain:
        if isinstance(value, dict):
            return self._entries(value)
        if isinstance(value, set | frozenset):
            return sorted(self._parts(value), key=repr)
        return self._parts(value)

    def _parts(self, parts: Collection[object]) -> list[Plain]:
        self._bound(parts)
        if _INTEGERS.issuperset(map(type, parts)) and _are_small(parts):  # as of an optimizer
            return list(parts)  # type: ignore[arg-type]
        return [
            one if type(one) in _AS_THEY_ARE else self._within((number,), one)  # type: ignore[misc]
            for number, one in enumerate(parts)
        ]

    def _entries(self, entries: dict[Any, Any]) -> list[Plain]:
        """Pack entries as a list: keys may be of any kind that is packed, and have an order."""
        self._bound(entries)
        return [
            [
                self._packed(key) if type(key) in _NAMES else self._within(".keys()", key),
                one if type(one) in _AS_THEY_ARE else self._within((key,), one),
            ]
            for key, one in entries.items()
        ]

    def _bound(self, parts: Collection[object]) -> None:
        """Raises CannotTravel if these lie too deep."""
        if len(self._path) > DEPTH and len(parts):
            raise self._refused("a nest without an end")

    def _within(self, step: str | tuple[object], value: object) -> Plain:
        if len(self._path) > DEPTH:
            raise self._refused("a nest without an end")
        self._path.append(step)
        packed = self._packed(value)
        self._path.pop()
        return packed

    def _rare(self, value: Any) -> Plain:
        kind = type(value)
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind is deque:
            return {"deque": [value.maxlen, self._parts(value)]}
        if kind is defaultdict:
            factory = value.default_factory
            known = None if factory is None else getattr(factory, "__name__", "")
            if known is not None and FACTORIES.get(known) is not factory:
                raise self._refused("a defaultdict of a factory of its own")
            return {"defaultdict": [known, self._entries(value)]}
        if kind is torch.dtype:
            return {"dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": [value.type, value.index]}
        if values.is_numpy(value):
            if not _NUMPY_DTYPE.fullmatch(value.dtype.str):
                raise self._refused(f"a numpy value of {value.dtype}")
            return {"numpy": values.pack(value)}
        if (
            named := value_kinds.packed(value, lambda part: self._within(".parts", part))
        ) is not None:
            mark, body = named
            return {mark: body}
        raise self._refused(_kind_of(value))

    def _tensor(self, value: Any) -> Plain:
        here = self._numbers.get(id(value))
        if here is not None:
            return {"here": here}
        if type(value) not in _TENSORS and is_distributed(value):
            self.sharded = True
            part = self._tensor(value._local_tensor)
            return {"shard": [part, self._alike(value), list(value.shape), list(value.stride())]}
        if trouble := unsendable(value):
            raise self._refused(trouble)
        number, _ = self._met.setdefault(id(value), (len(self.tensors), value))
        if number == len(self.tensors):
            self.tensors.append(value)
            self.names.append(self._written())
        device = [] if value.is_cpu else [value.device.type]  # which one is each process's own
        return {"tensor": [number, value.requires_grad and value.is_leaf, *device]}

    def _alike(self, value: Any) -> int | None:
        """The number of a DTensor that the other side has, too, and that is laid out as this is."""
        here: Sequence[Any] = self.here
        layout = value.device_mesh, value.placements
        for number, one in enumerate(here):
            if is_distributed(one) and (one.device_mesh, one.placements) == layout:
                return number
        return None

    def _written(self) -> str:
        name = ""
        for one in self._path:  # each tensor has one
            name += one if type(one) is str else f"[{one[0]!r}]"
        return name

    def _refused(self, kind: str) -> CannotTravel:
        return CannotTravel(kind, self._written())


def unsendable(tensor: torch.Tensor) -> str:
    """The reason why `tensor` cannot be sent as the bytes of its elements; "" if it can."""
    if type(tensor) not in _TENSORS:
        return _kind_of(tensor)
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.is_meta:
        return "a tensor on the meta device"
    # FSDP frees the memory of parameters that are not in use; the tensors stay.
    last = tensor.storage_offset() + tensor.numel()
    if not tensor.is_contiguous():
        strides = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((n - 1) * s for n, s in strides) + 1
    needed = last * tensor.element_size() if tensor.numel() else 0
    return "a tensor without memory" if needed > tensor.untyped_storage().nbytes() else ""


def _are_small(numbers: Any) -> bool:
    """True of integers that msgpack has."""
    first, last = _MSGPACK_INTEGERS[0], _MSGPACK_INTEGERS[-1]
    return not numbers or (min(numbers) >= first and max(numbers) <= last)


def _kind_of(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"a member of the enum {type(value).__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


class _Unpacking:
    def __init__(
        self, tensors: Sequence[torch.Tensor], moved: bool, here: Sequence[torch.Tensor]
    ) -> None:
        self._tensors = list(tensors)
        self._here = here
        self._moved = moved
        self._leaves: dict[int, torch.Tensor] = {}  # which require a gradient

    def value(self, plain: object, depth: int) -> Any:
        if depth < 0:
            raise ValueError("not a packed value: a nest without an end")
        if isinstance(plain, list):
            return self._parts(plain, depth)
        if not isinstance(plain, dict):
            if type(plain) in _AS_THEY_ARE or type(plain) in (int, str):
                return plain
            raise ValueError(f"not a packed value: {_kind_of(plain)}")
        if len(plain) != 1:
            raise ValueError("not a packed value: a map of more than its kind")
        ((mark, body),) = plain.items()
        if mark in _SEQUENCES:
            return _SEQUENCES[mark](self._parts(body, depth))
        if mark in _SETS:
            return _SETS[mark](self._parts(body, depth))
        if mark in _DICTS:
            return _DICTS[mark](self._entries(body, depth))
        return self._rare(mark, body, depth)

    def _parts(self, parts: Any, depth: int) -> list[Any]:
        if not isinstance(parts, list):
            raise ValueError("not a packed value: no list of parts")
        return [self.value(one, depth - 1) for one in parts]

    def _entries(self, entries: Any, depth: int) -> dict[Any, Any]:
        return {self.value(k, depth - 1): self.value(v, depth - 1) for k, v in entries}

    def _rare(self, mark: str, body: Any, depth: int) -> Any:
        match mark:
            case "tensor":
                return self._tensor(*body)
            case "here" if _of(int, body) >= 0:
                return self._here[body]
            case "shard":
                return self._shard(*body)
            case "int":
                return int(_of(str, body), 16)
            case "str":
                return _of(bytes, body).decode("utf-8", "surrogatepass")
            case "complex":
                real, imaginary = body
                return complex(_of(float, real), _of(float, imaginary))
            case "deque":
                length, parts = body
                return deque(self._parts(parts, depth), length)
            case "defaultdict":
                factory, entries = body
                made = None if factory is None else FACTORIES[factory]
                return defaultdict(made, self._entries(entries, depth))
            case "dtype":
                return DTYPES[body]
            case "device":
                return torch.device(*body)
            case "numpy":
                return _array(body)
        return value_kinds.unpacked(mark, body, lambda part: self.value(part, depth - 1))

    def _shard(self, part: Any, alike: Any, shape: Any, stride: Any) -> Any:
        local = self._tensor(*part["tensor"])
        if alike is None or not self._here:
            return LocalShard(local)
        return like(self._here[_of(int, alike)], local, torch.Size(shape), tuple(stride))

    def _tensor(self, number: Any, leaf: Any, device: Any = "cpu") -> torch.Tensor:
        if _of(int, number) not in range(len(self._tensors)):
            raise ValueError(f"not a packed value: there is no tensor {number}")
        if self._moved and self._tensors[number].device.type != _of(str, device):
            self._tensors[number] = self._tensors[number].to(device)  # once, for all that hold it
        tensor: torch.Tensor = self._tensors[number]
        if not _of(bool, leaf):
            return tensor
        if number not in self._leaves:
            self._leaves[number] = tensor.detach()
            self._leaves[number].requires_grad_()
        return self._leaves[number]


def _of(kind: type[Any], value: object) -> Any:
    if type(value) is not kind:
        raise ValueError(f"not a packed value: {_kind_of(value)} is no {kind.__name__}")
    return value


def _array(packed: Any) -> Any:
    """The array that `values` has packed, and nothing else that numpy would take for a dtype."""
    (body,) = packed.values()
    dtype, _, _ = body
    if not _NUMPY_DTYPE.fullmatch(_of(str, dtype)):
        raise ValueError(f"not a packed value: {dtype!r} is no dtype of numbers")
    return values.unpack(packed)
