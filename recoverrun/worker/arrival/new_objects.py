"""Objects of the script's classes, and dicts, that others have made while they trained: a fresh
process makes an empty one in the same place.
"""

import sys
from typing import Any

from recoverrun.worker.arrival.container_contents import SEQUENCES, WHOLE
from recoverrun.worker.context.object_members import slots_of
from recoverrun.worker.context.object_views import named_in

DICT = "dict"
"""The holder of a value, where it is a dict."""


def is_object(holder: Any) -> bool:
    """True if attributes of an object are told."""
    return isinstance(holder, list | tuple)


def made(holder: Any, size: int) -> Any:
    """An empty one; None if its class is not here or has a way of its own to make objects, or if
    not all that it holds is told.
    """
    if not is_object(holder):
        return {} if holder == DICT else None
    module, name, attributes = holder
    kind: Any = sys.modules.get(module)
    for part in name.split("."):
        kind = getattr(kind, part, None)
    plain = getattr(kind, "__new__", None) is object.__new__ and not slots_of(kind)
    return object.__new__(kind) if plain and attributes == size else None


def add(holder: Any, name: Any, one: Any) -> bool:
    """Give a holder a new value. To a list it is added, if it comes next: False if not, or if the
    list has come with all that lies in it.
    """
    if type(holder) not in WHOLE:
        named_in(holder)[name] = one
        return True
    comes_next = type(holder) in SEQUENCES and name == len(holder) and hasattr(one, "__dict__")
    if comes_next:
        holder.append(one)
    return comes_next
