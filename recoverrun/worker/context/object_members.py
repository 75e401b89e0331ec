"""The members of the script's objects, each by a name: attributes, slots, entries, items, free
variables.

A path leads from a variable through such names to a value: `state` and `["step"]` to an entry of a
dict, `fetch` and `position` to a variable of a closure or to an attribute of a function. Whatever
kind the owner is of, its members are read, set and deleted as those of a dict are.
"""

import argparse
import functools
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

from torch import nn
from torch.utils.data import Sampler

from recoverrun.worker.context.attached_state import ATTACHED
from recoverrun.worker.context.attached_state import DICTS as DICTS
from recoverrun.worker.context.enum_members import is_enum
from recoverrun.worker.context.member_views import (
    MOST_ENTRIES,
    MOST_ITEMS,
    ORDER,
    Entries,
    Free,
    Items,
    Members,
    MemberView,
    ModuleVariables,
    Named,
    Shared,
    Slots,
    WrittenMembers,
    attributes,
)
from recoverrun.worker.data.samplers import RANK_NAMES, SAMPLER_NAMES

SEQUENCES = frozenset({list, tuple})
NAMESPACES = frozenset({SimpleNamespace, argparse.Namespace})
FRAMEWORKS = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages whose objects keep count of the script's microbatches, as its own objects might."""

OF_SAMPLERS = (*RANK_NAMES, *SAMPLER_NAMES)
"""Attributes of torch's samplers that say whose rows these give to a script that goes over them."""

MAIN = "<__main__>"
"""The name of the main module among those of modules, which no variable has."""


def is_framework(value: Any) -> bool:
    kind: Any = type(value)
    return is_of_framework(kind)


def is_of_framework(kind: Any) -> bool:
    return kind.__module__.partition(".")[0] in FRAMEWORKS


def is_own(value: Any, modules: frozenset[str]) -> bool:
    """True of an object with attributes, of a class of one of the script's `modules`; no model."""
    kind: Any = type(value)
    return is_own_kind(kind, modules) and hasattr(value, "__dict__")


@functools.lru_cache(maxsize=4096)
def is_own_kind(kind: Any, modules: frozenset[str]) -> bool:
    """True of such a class. Asked of every variable, several times in a step."""
    own = is_defined_in(kind, modules) or is_of_framework(kind)
    return own and not issubclass(kind, type | nn.Module)


def is_defined_in(kind: Any, modules: frozenset[str]) -> bool:
    """True of a class of one of these modules, and of a library's that is derived from one: a
    Trainer that extends an instrumented one keeps what that counts.
    """
    return any(base.__module__ in modules for base in kind.__mro__)


def is_sampler(value: Any) -> bool:
    """True of torch's own samplers."""
    kind: Any = type(value)
    return _is_sampler_kind(kind)


@functools.lru_cache(maxsize=4096)
def _is_sampler_kind(kind: Any) -> bool:
    """True of their classes. Asked of every variable, several times in a step."""
    return issubclass(kind, Sampler) and kind.__module__.partition(".")[0] == "torch"


def is_owner(value: Any, modules: frozenset[str]) -> bool:
    """True of what may hold a part of the script's state in members of its own."""
    kind: Any = type(value)
    if kind in DICTS:
        return len(value) <= MOST_ENTRIES
    if kind in SEQUENCES:
        return _holds_objects(value, modules)
    if kind in NAMESPACES or kind is ModuleVariables:
        return True
    if kind is FunctionType:
        return bool(value.__closure__ or value.__dict__) and value.__module__ in modules
    if kind is MethodType:
        return is_owner(value.__self__, modules)
    if isinstance(value, nn.Module):
        return bool(ATTACHED.written(value))
    if isinstance(value, type):
        return value.__module__ in modules and not issubclass(value, nn.Module)
    if is_enum(kind):
        return False  # a value: the attributes of one member are not to be given to another
    if is_own_kind(kind, modules):
        return hasattr(value, "__dict__") or bool(slots_of(kind))
    return _is_sampler_kind(kind)


def _holds_objects(value: Sequence[Any], modules: frozenset[str]) -> bool:
    """True of a short list of the script's objects, and of nothing else."""
    held = value[: MOST_ITEMS + 1]  # in one go: another thread of the script may change it
    kinds: set[Any] = set(map(type, held))
    own = 0 < len(held) <= MOST_ITEMS and all(is_own_kind(kind, modules) for kind in kinds)
    return own and all(is_owner(one, modules) for one in held)


def members(owner: Any) -> Members:
    """The members of an owner; none of anything else."""
    kind: Any = type(owner)
    if kind in DICTS:
        return Entries(owner)
    if kind in SEQUENCES:
        return Items(owner)
    if kind in NAMESPACES:
        return attributes(owner)
    if kind is ModuleVariables:
        return cast(ModuleVariables, owner)
    if kind is MethodType:
        return members(owner.__self__)
    if kind is FunctionType:
        return Free(owner)
    if isinstance(owner, type):
        return Shared(owner)
    if isinstance(owner, nn.Module) and (written := ATTACHED.written(owner)):
        return WrittenMembers(owner, written)
    if _is_sampler_kind(kind):
        return Named(owner, OF_SAMPLERS)
    slots = slots_of(kind)
    if slots:
        return Slots(owner, slots)
    return attributes(owner)


def contents(owner: Any) -> dict[str, Any]:
    """The members of an owner at this moment, in a dict of their own.

    Another thread of the script may change them while they are looked through: the dict that holds
    them is copied in one go, in which no other thread runs.
    """
    held = members(owner)
    return held.now() if isinstance(held, MemberView) else dict(held)


@functools.lru_cache(maxsize=4096)
def slots_of(kind: Any) -> tuple[str, ...]:
    """Names of the class's `__slots__` and of those of its bases, as attributes are looked up."""
    found: list[str] = []
    for base in kind.__mro__:
        named = vars(base).get("__slots__", ())
        for name in (named,) if isinstance(named, str) else tuple(named):
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(dict.fromkeys(found))


# ------------------------------------------------------------------------------- by path


def resolve(names: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The owner of the member `path[-1]`, or None if the way to it is gone."""
    owner: Any = names.get(path[0])
    for name in path[1:-1]:
        owner = members(owner).get(name)
    return owner


def spelt(path: tuple[str, ...]) -> str:
    """The path as code would say it: `state["step"]`, `fetch.position`."""
    if path[-1] == ORDER:
        return f"list({spelt(path[:-1])})"
    if path[0] == MAIN:
        return spelt(path[1:])
    return path[0].strip("<>") + "".join(
        name if name.startswith("[") else f".{name}" for name in path[1:]
    )


def is_of_module(path: tuple[str, ...]) -> bool:
    """True if the path begins at a module of the project."""
    return path[0].startswith("<")


def identifier(path: tuple[str, ...]) -> str:
    """The last name on the way that stands in the script's text."""
    return next(
        (name for name in reversed(path) if not name.startswith("[")), path[0]
    ).removesuffix("#")
