"""How often a launcher shows that it lives, and how long it may be silent, by how many there are.

Each sign of life and its answer cost whoever coordinates a fraction of a millisecond. Among few
launchers that is nothing, and a silent one is to be noticed soon. Among many the same rhythm would
take most of a core from the node that coordinates, so they speak more seldom, and are given up
later: a silence is several signs that did not come, never one.
"""

from typing import NamedTuple

MANY, THOUSANDS = 500, 2000
"""From so many launchers on the rhythm is the slow one, and the slowest."""


class Heartbeat(NamedTuple):
    """Both in seconds."""

    beat_s: float
    silent_s: float

    @property
    def deaf_s(self) -> float:
        """A loop wakes once a beat at least: so long a gap is its own standstill."""
        return 2 * self.beat_s


QUICK, SLOW = Heartbeat(beat_s=0.5, silent_s=2.0), Heartbeat(beat_s=1.0, silent_s=3.5)
SLOWEST = Heartbeat(beat_s=1.5, silent_s=4.8)
"""As seldom as it may be: a lease that a leader grants a member runs for 1.8 s at least."""


def heartbeat(launchers: int) -> Heartbeat:
    """The rhythm of a job of so many launchers."""
    if launchers < MANY:
        return QUICK
    return SLOW if launchers < THOUSANDS else SLOWEST
