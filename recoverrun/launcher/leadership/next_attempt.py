"""That the job begins again."""

from typing import NamedTuple


class NextAttempt(NamedTuple):
    reason: str
    counts: bool  # towards --max-restarts
