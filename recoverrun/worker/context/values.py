"""Plain values and small tensors: how they are compared, copied, and put into a context.

They travel as msgpack, never as pickle. What msgpack would give back as something else is marked.
"""

import functools
import sys
import time
from collections import deque
from collections.abc import Collection, MutableMapping
from typing import Any

import torch

from recoverrun.worker.context import enum_members, fingerprints
from recoverrun.worker.context.enum_members import is_enum
from recoverrun.worker.rng.streams import tensor_bytes

SMALL_TENSOR_BYTES = 1 << 20
IMPORTED_AT = time.time()
"""Before any step: the script imports torch, and that this module, before it trains."""

LONG_TEXT = 4096
LONG_SEQUENCE = 64
DEPTH = 4

KEPT = frozenset({str, int, float, bool, type(None), tuple, list, deque, set, torch.Tensor})
"""Kinds of values that may be captured, beside those of numpy and Enums."""

SEQUENCES = (tuple, list, deque)
FIXED = frozenset({str, int, float, bool, type(None)})
ALWAYS = frozenset({float, bool, type(None)})
"""Kinds of which all values are simple."""


@functools.lru_cache(maxsize=4096)
def is_kept(kind: Any) -> bool:
    """True of kinds of which some values are captured."""
    return kind in KEPT or _is_numpy(kind) or is_enum(kind)


def is_of_one_rank(present: Any, others: Any) -> bool:
    """True of an object that this process has made where others have None: what rank 0 writes its
    log with, say.
    """
    kind: Any = type(present)
    return others is None and present is not None and not is_kept(kind)


@functools.lru_cache(maxsize=4096)
def _is_numpy(kind: Any) -> bool:
    """True of numpy's arrays and numbers: a mean that numpy has computed is none of Python's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic))


def is_numpy(value: Any) -> bool:
    kind: Any = type(value)
    return _is_numpy(kind)


def is_clock_reading(value: Any) -> bool:
    """True of what `time.time()` can have returned since this module was imported."""
    return type(value) is float and IMPORTED_AT <= value <= time.time()


def is_simple(value: Any, depth: int = DEPTH) -> bool:
    """True of values that come back as what they are."""
    kind: Any = type(value)
    if kind is str:
        return len(value) <= LONG_TEXT and (value.isascii() or _is_unicode(value))
    if value is None or kind is bool or kind is float:
        return True
    if kind is int:
        return bool(-(1 << 63) <= value < 1 << 63)
    if kind in SEQUENCES or kind is set:
        if depth <= 0 or len(value) > LONG_SEQUENCE:
            return False
        held = tuple(value)  # in one go: another thread of the script may change it meanwhile
        return all(type(one) in ALWAYS or is_simple(one, depth - 1) for one in held)
    if _is_numpy(kind):
        return bool(value.nbytes <= fingerprints.SMALL_ARRAY_BYTES and value.dtype.kind in "biufc")
    return is_enum(kind) and enum_members.is_member(value)


def _is_unicode(text: str) -> bool:
    """True if it can be sent: the file system's undecodable bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_small_tensor(value: Any, limit: int = SMALL_TENSOR_BYTES) -> bool:
    """True of a plain tensor that holds data: no parameter, no part of a graph, no DTensor."""
    if type(value) is not torch.Tensor or value.requires_grad or value.is_quantized:
        return False
    if value.layout is not torch.strided or value.device.type == "meta":
        return False
    return value.numel() * value.element_size() <= limit


def is_small_data(value: Any) -> bool:
    """True of the same, and of an array or a number of numpy's."""
    return is_small_tensor(value) or (is_numpy(value) and value.nbytes <= SMALL_TENSOR_BYTES)


def is_result(value: Any) -> bool:
    """True of a number computed with gradients: a running loss, to which code adds in place."""
    plain = type(value) is torch.Tensor and value.grad_fn is not None
    return plain and not value.is_quantized and value.numel() == 1


def same(one: Any, other: Any) -> bool:
    """Bit for bit: a NaN is itself, and True is not 1."""
    kind: Any = type(one)
    if type(other) is not kind:
        return False
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(tensor_bytes(one.detach()) == tensor_bytes(other.detach()))
    if kind in SEQUENCES:
        bounds = (one.maxlen, other.maxlen) if kind is deque else (0, 0)
        return bounds[0] == bounds[1] and len(one) == len(other) and all(map(same, one, other))
    if kind is set:
        return _listed(one) == _listed(other)
    if kind is float:
        return bool(one == other or (one != one and other != other))
    if is_numpy(one):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    return one is other if is_enum(kind) else bool(one == other)


def _listed(value: set[Any]) -> list[str]:
    """A list in an order that all processes have."""
    return sorted(map(_text, value))


def _text(value: Any) -> str:
    """The text of what a set may hold; that of a number is its kind, too."""
    kind: Any = type(value)
    if kind is tuple:
        return f"({','.join(map(_text, value))})"
    return _member_text(value) if is_enum(kind) else repr(value)


def _member_text(value: Any) -> str:
    return ".".join(enum_members.told(value))


def bits(value: Any) -> bytes:
    """The bytes of a value for a digest: equal on all ranks where the values are equal."""
    kind: Any = type(value)
    if isinstance(value, torch.Tensor):
        return tensor_bytes(value.detach())
    if kind is set:
        return repr(_listed(value)).encode(errors="replace")
    if kind in SEQUENCES and any(type(part) not in FIXED for part in value):
        bound = repr(value.maxlen) if kind is deque else ""
        parts = [bits(part) for part in value]
        sizes = [len(part) for part in parts]
        return f"{kind.__name__} {bound} {sizes}".encode() + b"".join(parts)
    if _is_numpy(kind):
        return bytes(value.tobytes())
    text = _member_text(value) if is_enum(kind) else repr(value)
    return text.encode(errors="replace")


def put(owner: MutableMapping[str, Any], name: str, value: Any) -> None:
    """Give a captured `value` to the variable `name`; tensors are copied."""
    if fingerprints.is_mark(name):
        return
    if isinstance(value, torch.Tensor):
        present = owner.get(name)
        device = present.device if isinstance(present, torch.Tensor) else value.device
        owner[name] = value.to(device).clone()
    else:
        owner[name] = copied(value)


def copied(value: Any) -> Any:
    """A copy of a captured value that later changes of the original do not reach."""
    kind: Any = type(value)
    if kind is list:
        return [one if type(one) in FIXED else copied(one) for one in value]
    if kind is deque:
        return deque(map(copied, tuple(value)), value.maxlen)
    if kind is set or _is_numpy(kind):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(copied, value)) if kind is tuple else value


# ----------------------------------------------------------------------------- as they travel

_TUPLE, _DEQUE, _SET, _TENSOR, _NUMPY, _MEMBER = "t", "d", "s", "T", "n", "e"
_NUMBERS = frozenset({bool, int, float, type(None)})


def pack(value: Any) -> Any:
    """The value for msgpack; a kind that msgpack does not have is marked by a dict of one key."""
    kind: Any = type(value)
    if kind is tuple:
        return {_TUPLE: _parts(value)}
    if kind is list:
        return _parts(value)
    if kind is deque:
        return {_DEQUE: [value.maxlen, [pack(one) for one in value]]}
    if kind is set:
        return {_SET: [pack(one) for one in sorted(value, key=_text)]}
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg()
        dtype = str(plain.dtype).removeprefix("torch.")
        return {_TENSOR: [dtype, list(plain.shape), tensor_bytes(plain)]}
    if _is_numpy(kind):
        shape = list(value.shape) if kind.__name__ == "ndarray" else None
        return {_NUMPY: [value.dtype.str, shape, value.tobytes()]}
    return {_MEMBER: enum_members.told(value)} if is_enum(kind) else value


def _parts(values: Collection[Any]) -> list[Any]:
    """Python's generator of random numbers has 625 integers."""
    return list(values) if _NUMBERS.issuperset(map(type, values)) else [pack(one) for one in values]


def unpack(packed: Any) -> Any:
    """Raises ValueError, and what torch and numpy raise, for what is no value."""
    if isinstance(packed, list):
        return [unpack(one) for one in packed]
    if not isinstance(packed, dict):
        return packed
    if _TUPLE in packed:
        return tuple(unpack(one) for one in packed[_TUPLE])
    if _SET in packed:
        return {unpack(one) for one in packed[_SET]}
    if _DEQUE in packed:
        length, parts = packed[_DEQUE]
        return deque(map(unpack, parts), length)
    if _NUMPY in packed:
        return _array(*packed[_NUMPY])
    if _MEMBER in packed:
        return enum_members.member(*packed[_MEMBER])
    return _tensor(*packed[_TENSOR])


def _tensor(dtype: str, shape: list[int], raw: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"not a dtype: {dtype!r}")
    flat = torch.frombuffer(_copied(raw), dtype=torch.uint8) if raw else torch.empty(0)
    return (flat.view(kind) if raw else flat.to(kind)).reshape(shape)


def _array(dtype: str, shape: list[int] | None, raw: bytes) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise ValueError("an array of numpy, which this process does not know")
    kind = numpy.dtype(dtype)
    if kind.kind not in "biufc":
        raise ValueError(f"not a number: {dtype!r}")
    flat = numpy.frombuffer(_copied(raw), dtype=kind)
    return flat[0] if shape is None else flat.reshape(shape)


def _copied(raw: bytes) -> bytearray:
    """A copy of a buffer; of a number, `bytearray` would make as many bytes."""
    if type(raw) is not bytes:
        raise ValueError("elements that are not bytes")
    return bytearray(raw)
