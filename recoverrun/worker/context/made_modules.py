"""Modules that the script has made itself, as `ModuleType("settings")`: no file was read for them.

A process has thousands of modules, and all are looked through whenever all that the script holds
is: what was found is found again as long as there are the same ones.
"""

import functools
import itertools
import sys
from types import ModuleType
from typing import Any

NEWEST = 64
"""Names that are compared. A module that gets another name comes behind all others."""


def made_by_script(own: frozenset[str]) -> frozenset[str]:
    """Their names. The script's `own` modules are those that were read from its files.

    To copy all names and modules, or to look at each, takes longer than all else in a walk: they
    lie far apart in memory.
    """
    numbers = tuple(map(id, sys.modules.values()))
    return _among(numbers, tuple(itertools.islice(reversed(sys.modules), NEWEST)), own)


@functools.lru_cache(maxsize=8)
def _among(
    numbers: tuple[int, ...], newest: tuple[str, ...], own: frozenset[str]
) -> frozenset[str]:
    """Among the modules of these ids. `_is_made` holds them, so that no other one gets the id of
    one that is gone.
    """
    known = dict(sys.modules)
    made = {name for name, one in known.items() if type(one) is ModuleType and _is_made(one)}
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
