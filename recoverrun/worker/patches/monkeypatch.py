"""Puts something in the place of a name of torch, or of a framework, wherever it was copied to."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Wrapper = Callable[[Any], Any]
"""Takes the original, returns what stands in its place."""


def replace(owner: Any, name: str, wrapper: Wrapper) -> None:
    """Put `wrapper(original)` in the place of `owner.name`, and of its copies in that package."""
    is_module = isinstance(owner, ModuleType)
    original = vars(owner)[name] if is_module else getattr(owner, name)
    stand_in = wrapper(original)
    if stand_in is original:
        return
    functools.update_wrapper(stand_in, original)
    setattr(owner, name, stand_in)
    if is_module:
        replace_copies(owner, name, original, stand_in)


def replace_copies(owner: ModuleType, name: str, original: Any, stand_in: Any) -> None:
    """Replace the copies in the modules of that package that have imported the name from `owner` by
    now.
    """
    package = owner.__name__.partition(".")[0]
    for module_name, module in list(sys.modules.items()):
        copied = module_name.startswith(package) and isinstance(module, ModuleType)
        if copied and vars(module).get(name) is original:
            setattr(module, name, stand_in)
