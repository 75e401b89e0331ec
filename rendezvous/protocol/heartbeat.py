"""The interval of a launcher's signs of life, and the silence that it may keep, by the number of
launchers.

Each sign of life and its answer cost whoever coordinates a fraction of a millisecond. Among few
launchers that is nothing, and a silent one is to be noticed soon. Among many the same rhythm would
take most of a core from the node that coordinates, so they speak more seldom, and are given up
later: a silence is several signs that did not come, never one.

Silence proves nothing, so it lasts longer than a link that flaps: a flap of `FLAP_S`, which may
begin a beat after the last sign, and what the kernel then waits before it sends again
(`RESENT_WITHIN_S`). What is proved (a refused port, a process that ended) waits for none of this.
"""

from typing import NamedTuple

FLAP_S = 3.0
"""A link may be gone for so long, and nobody is given up."""

RESENT_WITHIN_S = 1.7
"""After a flap the kernel sends again within that. It doubles its wait with each loss, but on our
connections it waits 1 s at most, and where it cannot be told so it waits longer only after the
seventh loss (`sockets.resend_soon`)."""

MANY, THOUSANDS = 500, 2000
"""From so many launchers on the rhythm is the slow one, and the slowest."""


class HeartbeatTimes(NamedTuple):
    """Both in seconds."""

    beat_s: float
    silent_s: float

    @property
    def deaf_s(self) -> float:
        """A loop wakes once a beat at least: so long a gap is its own standstill."""
        return 2 * self.beat_s


QUICK, SLOW = HeartbeatTimes(beat_s=0.5, silent_s=5.5), HeartbeatTimes(beat_s=1.0, silent_s=6.0)
SLOWEST = HeartbeatTimes(beat_s=1.5, silent_s=7.0)
"""As seldom as it may be: a lease that a leader grants a member runs for 1.8 s at least."""


def heartbeat(launchers: int) -> HeartbeatTimes:
    """The rhythm of a job of so many launchers."""
    if launchers < MANY:
        return QUICK
    return SLOW if launchers < THOUSANDS else SLOWEST
