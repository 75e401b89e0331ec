"""Members of Enums: one object in each process, which its class and its name identify on all ranks.

A class is found among the modules that are loaded. Nothing is imported or called, so a name that
arrives executes nothing, and a member's own `__eq__`, `__repr__` and `name` are not asked.
"""

import enum
import sys
from types import ModuleType
from typing import Any


def is_enum(kind: Any) -> bool:
    return issubclass(kind, enum.Enum)


def is_member(value: Any) -> bool:
    """True of what comes back as itself: no sum of flags, no member of a class that a function has
    made.
    """
    kind: Any = type(value)
    if not is_enum(kind) or _class(kind.__module__, kind.__qualname__) is not kind:
        return False
    return _members(kind).get(_name(value)) is value


def told(value: Any) -> list[str]:
    """The module, class and name of a member."""
    kind: Any = type(value)
    return [kind.__module__, kind.__qualname__, _name(value)]


def member(module: str, qualified: str, name: str) -> Any:
    """Raises ValueError if no module that is loaded has such a member."""
    kind: Any = _class(module, qualified)
    found = _members(kind).get(name) if isinstance(kind, enum.EnumMeta) else None
    if found is None or type(found) is not kind:
        raise ValueError(f"no member of an Enum: {module}.{qualified}.{name}")
    return found


def _class(module: str, qualified: str) -> Any:
    """The class of that name in a module that is loaded; else None. No `__getattr__` is asked."""
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None
    return found


def _name(value: Any) -> str:
    return str(object.__getattribute__(value, "_name_"))


def _members(kind: Any) -> dict[str, Any]:
    """The members by their names, aliases too."""
    found: dict[str, Any] = vars(kind).get("_member_map_", {})
    return found
