"""Which snapshot: the attempt of the job in which it was taken, and the step at whose top."""

from typing import NamedTuple


class SnapshotId(NamedTuple):
    """Newer ones are greater: steps come again in an attempt that goes back, attempts never do."""

    attempt: int
    step: int


NONE = SnapshotId(-1, -1)
"""Older than every snapshot."""

NO_ORDER = -1, 0, NONE, NONE
"""Older than every order of what to keep."""
