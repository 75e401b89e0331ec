"""The values that only rank 0 has and its deputy needs in its place.

    if rank == 0:
        folder = make_folder()                      # no other rank has this name, or holds None
    ...
    if rank == 0:
        torch.save(state, f"{folder}/{step}.pt")

At the first commit point rank 0 tells all others the simple values of names that such code reads:
in functions that are being executed there, and in their modules. Where the deputy has nothing in
their place, they become its own. What else rank 0 has made there before training the deputy makes
anew in the same way (`recreated_objects`).
"""

import ctypes
import functools
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path, PurePath
from types import CodeType, FrameType, FunctionType
from typing import Any

from recoverrun.worker.instrumentation import Lone
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.recreated_objects import Recipe

MADE = "in the place of rank 0, {} was made anew: what it held there is lost"
UNMADE = "in the place of rank 0, {} could not be made: {!r}"

LONG_TEXT = 4096
LARGE = 1 << 63

Told = Mapping[str, Any]
"""Values as they travel, by `_key`."""


def exchange(worker: WorkerState, generation: int) -> None:
    """All ranks enter; rank 0 tells. Superseded if `generation` ends first."""
    from ft_collectives.communicators.gather_objects import gather

    runtime, env = worker.runtime, worker.env
    assert worker.fabric is not None, "protected"
    mine = {} if env.rank else held(runtime.gate.places, sys._getframe())
    heard = gather(worker.fabric, worker.protection.vote_group.channel, generation, mine)
    runtime.gate.told = heard.get(0, {})


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


class Supply:
    """The values that the deputy gets, or makes anew, of what only rank 0 had: `supply` before each
    lone block.
    """

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker
        self._reads: dict[CodeType, tuple[int, frozenset[str]]] = {}
        self._tried: set[tuple[CodeType, str]] = set()
        self._under_way: list[Recipe] = []

    def supply(self, frame: FrameType) -> None:
        """Supply all lone code in this function, as things may have to go along from now on."""
        for name in sorted(self._read_in(frame.f_code)):
            if named(frame, name) is None:
                self._get(frame, name)

    def _read_in(self, code: CodeType) -> frozenset[str]:
        """The names that lone code in this function reads."""
        places = self._worker.runtime.gate.places
        known, names = self._reads.get(code, (0, frozenset()))
        if known != len(places):
            here = [lone.reads for place, lone in places.items() if within(code, place)]
            names = frozenset(name for reads in here for name in reads)
            self._reads[code] = len(places), names
        return names

    def _get(self, frame: FrameType, name: str) -> None:
        runtime, key = self._worker.runtime, (frame.f_code, name)
        told = said_of(frame.f_code, name, runtime.gate.told)
        if told is None and key not in self._tried:
            self._tried.add(key)
            recipe = runtime.gate.recreated.recipe(frame.f_code, name)
            told = None if recipe is None else self._made(frame, recipe)
        if told is not None:
            _bind(frame, name, told)

    def _made(self, frame: FrameType, recipe: Recipe) -> Any:
        """The object that rank 0 has made there, made once more; None if that is not possible."""

        if any(one is recipe for one in self._under_way):
            return None
        worker, before = self._worker, read_streams()
        worker.runtime.gate.lone += 1
        self._under_way.append(recipe)
        try:
            made = FunctionType(recipe.making.code, self._materials(frame, recipe))()
        # Protects training from code that another rank was meant for, whatever it raises.
        except Exception as error:
            worker.reporter.notice(UNMADE.format(recipe.making.name, error))
            return None
        finally:
            self._under_way.pop()
            worker.runtime.gate.lone -= 1
            restore_streams(before)
        if made is not None:
            worker.reporter.notice(MADE.format(recipe.making.name))
        return made

    def _materials(self, frame: FrameType, recipe: Recipe) -> dict[str, Any]:
        """The names that a making finds."""
        runtime = self._worker.runtime
        here = frame.f_locals if frame.f_code is recipe.code else {}
        found = {**recipe.names, **here}
        for name in recipe.making.needs:  # `self` before `self.file`
            if (value := recipe.has(name)) is None and _resolved(found, name) is None:
                value = said_of(recipe.code, name, runtime.gate.told)
                other = runtime.gate.recreated.recipe(recipe.code, name)
                if value is None and other is not None:
                    value = self._made(frame, other)
                    if recipe.code is frame.f_code and value is not None:
                        _bind(frame, name, value)
            if value is not None:
                _give(found, name, value)
        return found


def said_of(code: CodeType, name: str, told: Told) -> Any:
    """The value that rank 0 has told of `name` in a function or its module; None if it has not."""
    for function in (code.co_qualname, ""):
        if (value := told.get(_key(code, function, name))) is not None:
            return _unpacked(value)
    return None


def within(code: CodeType, place: str) -> bool:
    """True if `place`, a file and a line, is in this function."""
    filename, _, line = place.rpartition(":")
    if filename != code.co_filename:
        return False
    first, last = _span(code)
    return first <= int(line) <= last


@functools.lru_cache(maxsize=4096)
def _span(code: CodeType) -> tuple[int, int]:
    lines = [line for _, _, line in code.co_lines() if line]
    return min(lines), max(lines)


def named(frame: FrameType, name: str) -> Any:
    """The value of `name`, which may be dotted, in `frame`; None if that cannot be seen."""
    first = name.partition(".")[0]
    own = first in frame.f_locals
    return _resolved(frame.f_locals if own else frame.f_globals, name)


def _resolved(names: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name, found without running code of the script."""
    first, *rest = name.split(".")
    found = names.get(first)
    for part in rest:
        found = inspect.getattr_static(found, part, None)
    return found


def _give(names: dict[str, Any], name: str, value: Any) -> None:
    """Give a variable or, by a dotted name, an attribute of what a variable holds this value."""
    owner, _, last = name.rpartition(".")
    if not owner:
        names[name] = value
    elif isinstance(attributes := getattr(_resolved(names, owner), "__dict__", None), dict):
        attributes[last] = value  # also where it is frozen


def _bind(frame: FrameType, name: str, value: Any) -> None:
    first, *rest = name.split(".")
    code = frame.f_code
    if rest:
        owner = named(frame, first)
        _give({first: owner}, name, value)
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
