"""The next attempt of a job."""

from typing import NamedTuple


class NextAttempt(NamedTuple):
    reason: str
    counts: bool  # towards --max-restarts
