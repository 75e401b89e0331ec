"""A copy of one object alone: what it holds is shared."""

import copy
from typing import TypeVar

T = TypeVar("T")


def shallow_copy(owner: T) -> T:
    """Return a shallow copy with its own `__dict__`: some `__setstate__` keep that of `owner`."""
    clone = copy.copy(owner)
    if vars(clone) is vars(owner):
        object.__setattr__(clone, "__dict__", dict(vars(owner)))
    return clone
