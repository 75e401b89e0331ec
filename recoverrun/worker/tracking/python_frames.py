"""Frames of the calls that run now."""

from types import FrameType


def find_frame(frame_id: int, start: FrameType) -> FrameType | None:
    """The frame with this id among the calls that end at `start`. Ids, not frames, are kept: a
    reference would keep everything alive that the script's function had in its variables.
    """
    at: FrameType | None = start
    while at is not None and id(at) != frame_id:
        at = at.f_back
    return at
