"""Variables of functions that are running: read in a survivor, written in a fresh process.

Of each frame on the way only those are told that its loops bind: the script makes the others anew.
What the header of a loop binds comes with its item, in the fresh process as anywhere.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

from recoverrun.worker.errors import NotReachable
from recoverrun.worker.tracking.microbatches import LoopFrame, Top
from recoverrun.worker.tracking.python_frames import find_frame

WRITES_THROUGH = sys.version_info >= (3, 13)
"""PEP 667: `f_locals` of a function is a view of its variables."""


@dataclass(frozen=True, slots=True)
class FrameVariables:
    """The variables of one frame that the loops of the path bind, the outermost frame first."""

    loops: tuple[str, ...]  # ids of these loops
    local: dict[str, Any]
    module: dict[str, Any]  # variables of the module, which the function declares `global`


def stack_of(stack: Sequence[LoopFrame], top: Top) -> list[LoopFrame]:
    """The loops of `stack` up to the one that begins at `top`."""
    here = (top.frame_id, top.loop.id)
    at = next(n for n, one in enumerate(stack) if (one.frame_id, one.loop.id) == here)
    return list(stack[: at + 1])


def frames_of(stack: Iterable[LoopFrame], frame: FrameType) -> list[FrameType]:
    """The functions that these loops are in, the innermost first. `frame` is below them."""
    found = [find_frame(one.frame_id, frame) for one in stack]
    return [one for one in dict.fromkeys(reversed(found)) if one is not None]


def read_all(stack: Sequence[LoopFrame], start: FrameType) -> list[FrameVariables]:
    """Read the variables of all loops of `stack`, by reference. `start` is below their frames.

    Not while somebody goes by the dict of `locals()` of one of them: it is cleared.
    """
    found = []
    for loops, frame in _frames(stack, start):
        local, names, shared = frame.f_locals, names_bound(loops), _global_names(loops)
        found.append(
            FrameVariables(
                loops=tuple(one.loop.id for one in loops),
                local=_among(local, names - shared),
                module=_among(frame.f_globals, names & shared),
            )
        )
        _let_go(frame, local)
    return found


def write_all(told: Sequence[FrameVariables], stack: Sequence[LoopFrame], start: FrameType) -> None:
    """Write what was read in another process, where `stack` is of the same loops. The dict of
    `locals()` of the innermost function, by which the tracker goes on, holds it, too.

    Raises NotReachable if `stack` is of other loops.
    """
    found = list(_frames(stack, start))
    here = [tuple(one.loop.id for one in loops) for loops, _ in found]
    if here != [one.loops for one in told]:
        raise NotReachable(f"the functions of the loops at {here} are not those of the others")
    for one, (_, frame) in zip(told, found, strict=True):
        write(frame, one.local)
        frame.f_globals.update(one.module)
        if frame is not found[-1][1]:
            _let_go(frame, frame.f_locals)


def write(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Give variables of a running function, or of a module, new values, as a debugger does.

    Variables that inner functions share with it (cells) change for these as well.
    """
    known = frame.f_locals  # before 3.13 this fills the dict that is written back below
    known.update(values)
    if not WRITES_THROUGH and known is not frame.f_globals:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def writer(frame: FrameType, module: dict[str, Any]) -> Callable[[str, Any], None]:
    """Gives a new value to the variable of a running function, or of its `module` if the function
    has none of that name.
    """

    def to_name(name: str, value: Any) -> None:
        if name in frame.f_locals:
            write(frame, {name: value})
        else:
            module[name] = value

    return to_name


def refresh(local: dict[str, Any], stack: Sequence[LoopFrame], start: FrameType) -> None:
    """Bring `local`, what `locals()` gave in the function of the innermost loop, up to date."""
    frame = find_frame(stack[-1].frame_id, start)
    if frame is not None and local is not frame.f_locals:
        local.update(frame.f_locals)


def _let_go(frame: FrameType, local: Mapping[str, Any]) -> None:
    """Before 3.13 the frame of a function keeps this dict, and the dict all that is in it."""
    if not WRITES_THROUGH and frame.f_code.co_flags & CO_OPTIMIZED:
        assert isinstance(local, dict), "a view only from 3.13 on"
        local.clear()


def names_bound(loops: Iterable[LoopFrame]) -> frozenset[str]:
    """Names that one iteration of these loops, all of one frame, may leave to the next."""
    names: set[str] = set()
    targets: set[str] = set()
    for one in loops:
        names |= one.loop.assigned
        targets |= one.loop.targets
        if any((one.tested or {}).values()):  # its test takes an item
            targets |= one.loop.tested
        else:
            names |= one.loop.tested
    return frozenset(names - targets)


def _global_names(loops: Iterable[LoopFrame]) -> frozenset[str]:
    return frozenset(name for one in loops for name in one.loop.global_names)


def _among(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: values[name] for name in sorted(names) if name in values}


def _frames(
    stack: Sequence[LoopFrame], start: FrameType
) -> Iterable[tuple[list[LoopFrame], FrameType]]:
    """The loops of each frame, the outermost frame first, and that frame."""
    grouped: dict[int, list[LoopFrame]] = {}
    for one in stack:
        grouped.setdefault(one.frame_id, []).append(one)
    for frame_id, loops in grouped.items():
        frame = find_frame(frame_id, start)
        if frame is None:
            raise NotReachable(f"the function of the loop at {loops[0].loop.id} does not run")
        yield loops, frame
