"""Places in the script, in words: a file and line, and the sample if known.

Of the frames of a stack those of the script's own modules count, the innermost of them first. A
data set that was asked for one sample tells which: it is the argument of its `__getitem__`.
"""

import sys
import traceback
from collections.abc import Collection, Iterator
from types import FrameType

Spot = tuple[FrameType, int]
"""A frame and its line then."""


def of_error(error: BaseException, own: Collection[str]) -> str:
    """The place in modules `own` where the error was raised: " at FILE:LINE", or "" if nowhere
    there.
    """
    return _told(list(traceback.walk_tb(error.__traceback__))[::-1], own)


def of_frame(frame: FrameType | None, own: Collection[str]) -> str:
    """The place in modules `own` of the code that has `frame` as its innermost one."""
    return _told(list(traceback.walk_stack(frame)), own)


def of_thread(number: int, own: Collection[str]) -> str:
    """The place in modules `own` where another thread stands now."""
    return of_frame(sys._current_frames().get(number), own)


def _told(innermost_first: list[Spot], own: Collection[str]) -> str:
    spots = [one for one in innermost_first if one[0].f_globals.get("__name__") in own]
    if not spots:
        return ""
    frame, line = spots[0]
    sample = next(_samples(spots), None)
    of = "" if sample is None else f", for sample {sample!r}"
    return f" at {frame.f_code.co_filename}:{line}{of}"


def _samples(spots: list[Spot]) -> Iterator[int | str]:
    for frame, _ in spots:
        code = frame.f_code
        if code.co_name == "__getitem__" and code.co_argcount == 2:
            value = frame.f_locals.get(code.co_varnames[1])
            if isinstance(value, int | str):
                yield value
