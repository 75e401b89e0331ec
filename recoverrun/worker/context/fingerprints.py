"""Marks of data that are too much to travel: large tensors, arrays, long lists of plain values.

A hand-written loader that goes through files keeps the present one in an attribute. Whether another
rank holds the same one cannot be read from a name, and its contents are too many to send. So they
are sampled: two values with different marks are different, and then another rank's microbatches
cannot be executed here, unless this process holds the other value, too: in a list of all of them,
say, or because it has seen it before.

A mark is kept under the name of what it marks and `#`, which no variable has.
"""

import struct
import weakref
import zlib
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from recoverrun.worker.context.object_members import DICTS
from recoverrun.worker.data.numpy_arrays import is_array, is_plain_array

SAMPLES = 64
FEW = 64
"""Lists up to this length are values themselves (`context.LONG_SEQUENCE`)."""

SMALL_ARRAY_BYTES = 1 << 12
"""Arrays up to this size are values themselves."""

TRIES = 10
"""To sample a container that another thread changes."""

LONG_KINDS = frozenset({list, deque, *DICTS})

NEVER_BULK = frozenset(
    {str, int, float, bool, type(None), tuple, set, type}
    | {FunctionType, BuiltinFunctionType, MethodType, ModuleType}
)
"""Kinds of nearly all variables and attributes: they are passed over without a further look."""

_known: dict[int, tuple[weakref.ref[torch.Tensor], int, str]] = {}


def is_mark(name: str) -> bool:
    return name.endswith("#")


def marks(names: Mapping[str, Any], beyond_bytes: int) -> dict[str, str]:
    """Marks of what is bulk among `names`; tensors up to `beyond_bytes` are values themselves."""
    return {
        f"{name}#": mark
        for name, value in names.items()
        if type(value) not in NEVER_BULK
        and is_bulk(value, beyond_bytes)
        and (mark := mark_of(value))
    }


def find(mark: str, names: Mapping[str, Any]) -> Any:
    """The container with this mark, in `names` or marked before; else None."""
    for value in names.values():
        inner = value.values() if type(value) is dict else value
        if type(value) in (list, tuple, dict) and len(value) <= FEW:
            for one in inner:
                if is_bulk(one, 0) and mark_of(one) == mark:
                    return one
    for held, version, known in list(_known.values()):
        tensor = held()
        if known == mark and tensor is not None and tensor._version == version:
            return tensor
    return None


def is_bulk(value: Any, beyond_bytes: int) -> bool:
    """True of data that are no simple value, and no parameter or part of a graph."""
    if type(value) in NEVER_BULK:
        return False
    if type(value) is torch.Tensor:
        if value.numel() * value.element_size() <= beyond_bytes:
            return False
        plain = value.layout is torch.strided and not value.is_quantized
        return plain and not value.requires_grad and value.device.type == "cpu"
    if is_array(value):
        least = min(beyond_bytes, SMALL_ARRAY_BYTES)
        return value.nbytes > least or value.dtype.kind not in "biufc" or not is_plain_array(value)
    return type(value) in LONG_KINDS and len(value) > FEW


def mark_of(value: Any) -> str:
    """Kind, size and a checksum of some elements; "" if it cannot be told."""
    if isinstance(value, torch.Tensor):
        return _mark_of_tensor(value)
    kind = type(value)
    if kind in LONG_KINDS:
        sample = _sampled(value)
        parts = [part for one in sample for part in (one if kind in DICTS else (one,))]
        if not all(type(part) in (int, float, bool, str) for part in parts):
            return ""  # the text of a parameter alone takes half a millisecond
        crc = zlib.crc32(repr(sample).encode(errors="replace"))
        return f"{kind.__name__} {len(value)} {crc:x}"
    if value.dtype.hasobject:
        return ""
    flat = value.reshape(-1) if value.flags.c_contiguous else value.flat
    sample = [flat[place] for place in _places(value.size)]
    return f"{value.dtype} {value.shape} {zlib.crc32(b''.join(one.tobytes() for one in sample)):x}"


def _sampled(value: Any) -> list[Any]:
    """A sample: of a list evenly spread elements, of other kinds the first and the last ones."""
    if type(value) is list:
        # Another thread of the script may make it shorter meanwhile.
        return [one for place in _places(len(value)) for one in value[place : place + 1]]
    entries = value.items() if type(value) in DICTS else value
    for _ in range(TRIES):
        with suppress(RuntimeError):  # another thread of the script has changed it meanwhile
            return [*islice(entries, SAMPLES // 2), *islice(reversed(entries), SAMPLES // 2)]
    return []


def grown(names: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `names` to which a script may have added so much that they are values no more."""
    return {
        name: value
        for name, value in names.items()
        if type(value) in LONG_KINDS and len(value) > FEW
    }


def _mark_of_tensor(value: torch.Tensor) -> str:
    known = _known.get(id(value))
    if known is not None and known[0]() is value and known[1] == value._version:
        return known[2]
    if len(_known) > FEW:
        _known.clear()
    flat = value.view(-1) if value.is_contiguous() else value.flatten()
    sample = flat[torch.tensor(_places(value.numel()), dtype=torch.long)].tolist()
    mark = f"{value.dtype} {tuple(value.shape)} {zlib.crc32(_plain(sample)):x}"
    _known[id(value)] = (weakref.ref(value), value._version, mark)
    return mark


def _plain(sample: list[Any]) -> bytes:
    if all(type(one) is float for one in sample):
        return struct.pack(f"{len(sample)}d", *sample)
    return repr(sample).encode()


def _places(count: int) -> list[int]:
    if count <= SAMPLES:
        return list(range(count))
    return [place * (count - 1) // (SAMPLES - 1) for place in range(SAMPLES)]
