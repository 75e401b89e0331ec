"""Modules that the script has made itself, as `ModuleType("settings")`: no file was read for them.

A process has thousands of modules, and all are looked through whenever all that the script holds
is: what was found is found again as long as there are the same ones.
"""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

NEWEST = 64
"""Names that are compared. A module that gets another name comes behind all others."""


@dataclass(slots=True)
class _Look:
    """The latest look through all modules."""

    modules: list[Any] = field(default_factory=list)
    newest: list[str] = field(default_factory=list)
    made: frozenset[str] = frozenset()


def made_by_script(own: frozenset[str]) -> frozenset[str]:
    """Their names. The script's `own` modules are those that were read from its files.

    A list of all modules is compared with the one before: whatever asks each of them, if only for
    its id, takes longer than all else in a walk, as they lie far apart in memory.
    """
    modules, newest = list(sys.modules.values()), list(islice(reversed(sys.modules), NEWEST))
    look = _latest(own)
    if modules != look.modules or newest != look.newest:
        look.modules, look.newest, look.made = modules, newest, _among(dict(sys.modules), own)
    return look.made


@functools.lru_cache(maxsize=8)
def _latest(_own: frozenset[str]) -> _Look:
    return _Look()


def _among(modules: Mapping[str, Any], own: frozenset[str]) -> frozenset[str]:
    made = {name for name, one in modules.items() if type(one) is ModuleType and _is_made(one)}
    return frozenset(name for name in made if not _is_of_library(name, own))


@functools.lru_cache(maxsize=1 << 14)
def _is_made(module: Any) -> bool:
    if module.__name__ == "__main__":
        return False
    return module.__spec__ is None and getattr(module, "__file__", None) is None


def _is_of_library(name: str, own: frozenset[str]) -> bool:
    """True of a part of a package that is not the script's, as an extension in C makes it."""
    outer = name.partition(".")[0]
    package = sys.modules.get(outer)
    ours = outer in (name, *own) or type(package) is not ModuleType
    return not ours and not _is_made(package)
