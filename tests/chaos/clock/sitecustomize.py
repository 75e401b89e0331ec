"""Python reads this when it starts with this folder on its path: its wall clock is another one.

CHAOS_CLOCK names a file with the seconds by which the clock is ahead; it is read again and again,
so a test can set the clock of a process that runs.
"""

import os
import time

_true_time = time.time
_path = os.environ.get("CHAOS_CLOCK", "")


def _ahead() -> float:
    try:
        with open(_path, encoding="ascii") as file:
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0


def _time() -> float:
    return _true_time() + _ahead()


def _time_ns() -> int:
    return int(_time() * 1e9)


if _path:
    time.time, time.time_ns = _time, _time_ns
