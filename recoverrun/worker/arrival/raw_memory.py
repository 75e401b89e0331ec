"""Arrays of Python, and those of numpy whose elements are no numbers: records, texts, dates.

They travel as their bytes, and what they are beside that.
"""

import ast
import sys
from array import array
from typing import Any
from zlib import crc32

from recoverrun.worker.arrival.packing import CannotTravel

KINDS = (array, bytearray)

MOST_BYTES = 1 << 26
"""Of one that travels, beside all else that is told without tensors."""

NUMBERS = "biufc"
"""The kinds of elements that numpy's arrays have as tensors have them."""

WORD = "raw memory"

Raw = tuple[str, str, str, tuple[int, ...], bytes]
"""`WORD`, the kind, the kind of its elements, its shape, and its bytes."""


def is_raw(value: Any) -> bool:
    """True of an array whose elements are neither numbers as tensors have them nor objects."""
    if type(value) in KINDS:
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray or not value.flags.writeable:
        return False
    return value.dtype.kind not in NUMBERS and not value.dtype.hasobject


def mark_of(value: Any) -> tuple[int, ...]:
    """A mark that is another one once its bytes are others."""
    found = _bytes(value)
    return len(found), crc32(found)


def told(value: Any) -> Raw:
    """Values that travel. Raises CannotTravel if there are too many bytes."""
    found = _bytes(value)
    if len(found) > MOST_BYTES:
        raise CannotTravel(f"an array of {len(found)} bytes", "its content")
    if isinstance(value, bytearray):
        return WORD, "bytearray", "", (), found
    if isinstance(value, array):
        return WORD, "array", value.typecode, (), found
    return WORD, "numpy", repr(value.dtype.descr), value.shape, found


def made(value: Any) -> Any:
    """The array that was `told`; any other value as it is."""
    if type(value) is not tuple or value[:1] != (WORD,):
        return value
    _, kind, elements, shape, found = value
    if kind == "bytearray":
        return bytearray(found)
    if kind == "array":
        return array(elements, found)
    numpy = sys.modules["numpy"]
    names = ast.literal_eval(elements)
    alone = len(names) == 1 and not names[0][0]
    dtype = numpy.dtype(names[0][1] if alone else names)
    return numpy.frombuffer(found, dtype).reshape(shape).copy()


def fill(present: Any, value: Any) -> bool:
    """Give an array of Python the content of another one where it lies; False if it is none."""
    if type(present) is not type(value) or type(present) not in KINDS:
        return False
    present[:] = value
    return True


def _bytes(value: Any) -> bytes:
    return bytes(value) if type(value) is bytearray else value.tobytes()
