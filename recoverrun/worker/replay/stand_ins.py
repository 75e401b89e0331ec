"""Functions that are replaced while this process executes code for another rank.

Also under the names by which the script's own modules have imported them. In this thread of this
process alone: other threads, and children that the code forks, call the originals.
"""

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Function = Callable[..., Any]

Replaced = tuple[ModuleType | type, str, Callable[[Function], Function]]
"""The place of a function, its name there, and what makes its stand-in of it."""


@contextmanager
def replaced(table: Sequence[Replaced], own: Collection[str]) -> Iterator[None]:
    """Replace the functions of `table`; `own` are the names of the script's modules."""
    originals = [(place, name, vars(place)[name]) for place, name, _ in table]
    stand_ins = {
        id(original): _here_alone(original, make(original))
        for (_, _, make), (_, _, original) in zip(table, originals, strict=True)
    }
    spaces = [vars(sys.modules[name]) for name in sorted(own) if name in sys.modules]
    copies = [
        (space, key, value)
        for space in spaces
        for key, value in list(space.items())
        if id(value) in stand_ins
    ]
    try:
        for place, name, original in originals:
            setattr(place, name, stand_ins[id(original)])
        for space, key, value in copies:
            space[key] = stand_ins[id(value)]
        yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)
        for space, key, value in copies:
            space[key] = value


def _here_alone(original: Function, stand_in: Function) -> Function:
    pid, thread = os.getpid(), threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        here = os.getpid() == pid and threading.get_ident() == thread
        return (stand_in if here else original)(*args, **kwargs)

    return call
