"""Python's resource trackers: each removes what its processes leave in shared memory, once the last
of them has ended.

`multiprocessing` starts one beside a process that makes a `SharedMemory`, or a semaphore where
children are spawned. It ignores SIGTERM and SIGINT, and ends by itself as its pipe closes. If it is
killed with its processes, what they have made keeps the memory until the machine starts anew.
"""

import os
import re
from contextlib import suppress

_COMMAND = re.compile(rb"\0-c\0from [\w.]*\.resource_tracker import main; ?main\(")
"""Of `multiprocessing`, and of those that are made after it (multiprocess, loky)."""


def is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _COMMAND.search(file.read()) is not None
    except OSError:
        return False  # It is gone.


def members(group: int) -> frozenset[int]:
    """The pids of a process group, zombies included."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(ProcessLookupError):
                if os.getpgid(int(name)) == group:
                    found.add(int(name))
    return frozenset(found)
