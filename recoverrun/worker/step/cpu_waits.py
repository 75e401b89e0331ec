"""The time for which the script's thread could have run and had no CPU: other processes of its node
had them, or the CPU limit of its cgroup was used up.

Linux counts both. The first (`/proc/PID/schedstat`, Documentation/scheduler/sched-stats) is read
once a step, the second (`cpu.stat`, Documentation/admin-guide/cgroup-v2) only after steps in which
there was any. Where a kernel does not count, nothing is told.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from rendezvous.protocol.control_groups import memberships, upwards

WORTH_MS = 1.0
"""Less of a step is everybody's."""

THROTTLED = {b"throttled_usec": 1e-3, b"throttled_time": 1e-6}
"""Lines of `cpu.stat`, of the second and the first cgroups, and milliseconds in their units."""

_MOST_BYTES = 4096


class CpuWaits:
    """The CPU waits of the main thread of this process."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is where /proc and /sys are."""
        self._schedstat = _opened(root / "proc/self/schedstat")
        self._limits = [fd for path in _limits(root) if (fd := _opened(path)) >= 0]
        self._waited = self._waited_ms()
        self._throttled = self._throttled_ms()

    def spent_ms(self) -> dict[str, float]:
        """Milliseconds since the last call: "cpu", of which others had the CPUs, "throttled"."""
        waited, self._waited = self._waited, self._waited_ms()
        waited = self._waited - waited
        if waited < WORTH_MS:
            return {}
        throttled, self._throttled = self._throttled, self._throttled_ms()
        held_back = min(waited, self._throttled - throttled)
        return {"cpu": waited - held_back, "throttled": held_back}

    def _waited_ms(self) -> float:
        return waited_ms(_content(self._schedstat))

    def _throttled_ms(self) -> float:
        return sum(throttled_ms(_content(fd)) for fd in self._limits)


def waited_ms(schedstat: bytes) -> float:
    """Milliseconds for which a thread waited on a run queue, by its `schedstat`."""
    numbers = schedstat.split()
    return int(numbers[1]) / 1e6 if len(numbers) >= 2 and numbers[1].isdigit() else 0.0


def throttled_ms(cpu_stat: bytes) -> float:
    """Milliseconds for which a cgroup was held back, by its `cpu.stat`."""
    for line in cpu_stat.splitlines():
        name, _, number = line.partition(b" ")
        if name in THROTTLED and number.isdigit():
            return int(number) * THROTTLED[name]
    return 0.0


def _limits(root: Path) -> Iterator[Path]:
    """The `cpu.stat` of the groups that this process is in, from its own up to the top."""
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    for group in memberships(text):
        if group.unified or "cpu" in group.controllers:
            top = root / "sys/fs/cgroup" / ",".join(group.controllers)
            yield from (folder / "cpu.stat" for folder in upwards(top, group.path))


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _content(fd: int) -> bytes:
    try:
        return os.pread(fd, _MOST_BYTES, 0) if fd >= 0 else b""
    except OSError:
        return b""  # The script has closed what it does not know.
