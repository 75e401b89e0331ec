"""What only rank 0 knows of what it does alone, and its deputy needs in its place (`firsts`).

    if rank == 0:
        folder = make_folder()                      # no other rank has this name, or holds None
    ...
    if rank == 0:
        torch.save(state, f"{folder}/{step}.pt")

At the first commit point rank 0 tells all others the simple values of names that such code reads:
in functions that are being executed there, and in their modules. Where the deputy has nothing in
their place, they become its own.
"""

import ctypes
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from recoverrun.hooks.script import Lone

if TYPE_CHECKING:
    from recoverrun.hooks.session import Session

LONG_TEXT = 4096
LARGE = 1 << 63

Told = Mapping[str, Any]
"""Values as they travel, by `_key`."""


def exchange(session: "Session", generation: int) -> None:
    """All ranks enter; rank 0 tells. Superseded if `generation` ends first."""
    from recoverrun.hooks.rehearsal import gather

    runtime, env = session.runtime, session.env
    assert session.fabric is not None, "protected"
    mine = {} if env.rank else held(runtime.places, sys._getframe())
    heard = gather(session.fabric, session.booth.channel, generation, mine)
    runtime.told = heard.get(0, {})


def held(places: Mapping[str, Lone], frame: FrameType | None) -> dict[str, Any]:
    """The simple values that lone code reads of functions in execution, and of their modules."""
    found: dict[str, Any] = {}
    while frame is not None:
        code = frame.f_code
        for place, lone in places.items():
            if place.rpartition(":")[0] != code.co_filename:
                continue
            for name in lone.reads:
                module = _packed(_resolved(frame.f_globals, name))
                own = _packed(named(frame, name)) if within(code, place) else None
                for function, value in (("", module), (code.co_qualname, own)):
                    if value is not None:
                        found[_key(code, function, name)] = value
        frame = frame.f_back
    return found


def lend(frame: FrameType, lone: Lone, told: Told) -> None:
    """Where `frame` has nothing for what lone code reads, it gets what rank 0 has told."""
    for name in lone.reads:
        if named(frame, name) is not None:
            continue
        for function in (frame.f_code.co_qualname, ""):
            value = told.get(_key(frame.f_code, function, name))
            if value is not None:
                _bind(frame, name, _unpacked(value))
                break


def within(code: CodeType, place: str) -> bool:
    """Is `place`, a file and a line, in this function?"""
    filename, _, line = place.rpartition(":")
    if filename != code.co_filename:
        return False
    lines = [line for _, _, line in code.co_lines() if line]
    return min(lines) <= int(line) <= max(lines)


def named(frame: FrameType, name: str) -> Any:
    """What `name`, which may be dotted, is in `frame`; None if that cannot be seen."""
    first = name.partition(".")[0]
    own = first in frame.f_locals
    return _resolved(frame.f_locals if own else frame.f_globals, name)


def _resolved(names: Mapping[str, Any], name: str) -> Any:
    """Without running any code of the script."""
    first, *rest = name.split(".")
    found = names.get(first)
    for part in rest:
        found = inspect.getattr_static(found, part, None)
    return found


def _bind(frame: FrameType, name: str, value: Any) -> None:
    first, *rest = name.split(".")
    code = frame.f_code
    if rest:
        owner = named(frame, ".".join([first, *rest[:-1]]))
        if isinstance(attributes := getattr(owner, "__dict__", None), dict):
            attributes[rest[-1]] = value  # also where it is frozen
    elif first in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        frame.f_locals[first] = value
        if sys.version_info < (3, 13):  # later it is written through (PEP 667)
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    else:
        frame.f_globals[first] = value


def _key(code: CodeType, function: str, name: str) -> str:
    return "\0".join((code.co_filename, function, name))


def _packed(value: Any) -> Any:
    """A simple value as it travels; None of any other."""
    if isinstance(value, PurePath):
        return [str(value)]
    if type(value) is str and len(value) <= LONG_TEXT:
        return value
    if type(value) in (bool, float) or (type(value) is int and -LARGE <= value < LARGE):
        return value
    return None


def _unpacked(value: Any) -> Any:
    return Path(value[0]) if isinstance(value, list) else value
