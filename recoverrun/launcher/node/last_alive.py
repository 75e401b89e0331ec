"""The latest time at which a process was surely alive, of which a poll says that it has ended.

All times are in seconds of the monotonic clock.
"""

WAITED_S = 0.001
"""A poll that took longer was waiting: what it found had just happened."""

LATE_S = 0.5
"""A poll that ends so long after it was due did not only wait: this launcher stood still (SIGSTOP,
a paused container), and what it found may have happened at any time since the poll began.
"""


def last_alive(*, looked_at: float, began: float, due: float, now: float) -> float:
    """The time for a poll from `began` to `now`, which was to end at `due`, after one that ended
    at `looked_at`.
    """
    if now - max(began, due) > LATE_S:
        return began
    return now if now - began > WAITED_S else looked_at
