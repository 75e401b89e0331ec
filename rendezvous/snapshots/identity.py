"""The name of a snapshot: the attempt in which it was taken, and the step at whose top."""

from typing import NamedTuple


class SnapshotId(NamedTuple):
    """Newer ones are greater: steps come again in an attempt that goes back, attempts never do."""

    attempt: int
    step: int


STARTS_MOST = 1 << 40
"""Attempts whose snapshots may have been in one directory."""


def on_disk(start: int, step: int) -> SnapshotId:
    """A snapshot in a directory, written in the attempt that was number `start` of all that have
    written there. It is older than all that are in memory, and than those of later starts.
    """
    return SnapshotId(start - STARTS_MOST - 2, step)


def start_of(found: SnapshotId) -> int:
    """The number of a start again; -1 of a snapshot that is in memory."""
    return found.attempt + STARTS_MOST + 2 if found.attempt < -1 else -1


NONE = SnapshotId(-1, -1)
"""Older than every snapshot in memory."""

NO_ORDER = -1, 0, NONE, NONE
"""Older than every order of what to keep."""
