"""The beginning of a run by a wall clock that may be set meanwhile.

What the run writes bears the time that the clock shows then. Where that is set back, files of the
run would seem to be older than it: so the beginning counts as early as the clock has ever made it.
"""

APART_S = 1.0
"""A clock that is only corrected moves it by less."""


class RunBeginning:
    """A run that began at `at` by the wall clock, which now shows `wall`; seconds, as `mono`."""

    def __init__(self, at: float, *, wall: float, mono: float) -> None:
        self.at = at
        self._ahead = wall - mono - at  # of the monotonic clock, and of the beginning

    def look(self, *, wall: float, mono: float) -> float:
        """The earliest time that a file of the run may bear, as the clock shows `wall` now."""
        at = wall - mono - self._ahead
        if at < self.at - APART_S:
            self.at = at
        return self.at
