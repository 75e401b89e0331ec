"""Arrays of numpy, where the script has imported it: nothing here does."""

import sys
from typing import Any


def array_kinds() -> tuple[Any, ...]:
    """The array types of numpy, if it is there. One that maps a file has to be put right where it
    is written to.
    """
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray, numpy.memmap)


def is_array(value: Any) -> bool:
    """True of an array, whatever its class adds."""
    return isinstance(value, array_kinds())


def is_plain_array(value: Any) -> bool:
    """True of an array in memory: one that maps a file is written to where it is changed."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None)
