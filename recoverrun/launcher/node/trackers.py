"""Trackers: each removes what its processes leave in shared memory, once all of them have ended.

`multiprocessing` starts a resource tracker beside a process that makes a `SharedMemory`, or a
semaphore where children are spawned. It ignores SIGTERM and SIGINT, and ends by itself as its pipe
closes. Torch starts a manager of its own for tensors that processes share by file names
(`file_system`); it ends 2 s after the last of them. If a tracker is killed with its processes, what
they have made keeps the memory until the machine starts anew.
"""

import os
import re
from contextlib import suppress

_COMMAND = re.compile(
    rb"\0-c\0from [\w.]*\.resource_tracker import main; ?main\(|^(?:[^\0]*/)?torch_shm_manager\0"
)
"""Of `multiprocessing`, of those that are made after it (multiprocess, loky), and of torch."""


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
