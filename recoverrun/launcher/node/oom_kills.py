"""Processes that the kernel has ended because memory was short: it counts them, and tells nobody.

A worker that it ends is gone by SIGKILL, as by anybody's hand. The count of the control group in
which launcher and workers are is asked (cgroup v2 `memory.events`, v1 `memory.oom_control`), and
where there is none that of the machine (`/proc/vmstat`). It rises before the signal is sent.
"""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

FIELD = "oom_kill"

LOOK_S = 1.0

WITHIN_S = 30.0
"""A process that held much memory is gone so long after it was counted."""


class OomKills:
    """The kills that were counted since this was made and that no end was attributed to."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is where /sys and /proc are."""
        self._source = next((one for one in _sources(root) if _count(one) is not None), None)
        self._known = self._counted()
        self._looked_at = float("-inf")
        self._open: deque[float] = deque()  # when they were seen

    def look(self, now: float) -> None:
        """Note when the count rose, to LOOK_S: called often, it asks seldom."""
        if now >= self._looked_at + LOOK_S:
            self._look(now)

    def explain_one(self, now: float) -> bool:
        """True if the kernel has ended a process a moment ago that no end was attributed to yet."""
        self._look(now)
        if not self._open:
            return False
        self._open.popleft()
        return True

    def _look(self, now: float) -> None:
        self._looked_at = now
        counted = self._counted()
        self._open.extend([now] * max(0, counted - self._known))
        self._known = counted
        while self._open and self._open[0] < now - WITHIN_S:
            self._open.popleft()

    def _counted(self) -> int:
        return (_count(self._source) or 0) if self._source is not None else 0


def _sources(root: Path) -> Iterator[Path]:
    """Files that may have the count, the nearest first; in a container a group's path may not
    exist, and its own is at the top.
    """
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if not kinds:
            yield from (top / path.lstrip("/") / "memory.events", top / "memory.events")
        elif "memory" in kinds.split(","):
            base = top / "memory"
            yield from (base / path.lstrip("/") / "memory.oom_control", base / "memory.oom_control")
    yield root / "proc/vmstat"


def _count(path: Path) -> int | None:
    fields = (line.split() for line in _text(path).splitlines())
    return next((int(one[1]) for one in fields if len(one) == 2 and one[0] == FIELD), None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
