"""Processes that the kernel has ended because memory was short: it counts them, and tells nobody.

A worker that it ends is gone by SIGKILL, as by anybody's hand. The count of the worker's own
control group is asked (cgroup v2 `memory.events`, v1 `memory.oom_control`), which the kernel raises
before it sends the signal, whichever group above had the limit. A group that has no count, or was
removed with its last process, is counted in those above it (v2); where no group counts, the machine
does (`/proc/vmstat`). Workers are in the launcher's group, unless the script, a wrapper or an
administrator moves them: so where each is, is looked up while it lives.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath

from recoverrun.config.kernel_files import content_of
from rendezvous.protocol.control_groups import memberships

FIELD = "oom_kill"

LOOK_S = 1.0

WITHIN_S = 30.0
"""A process that held much memory is gone so long after it was counted."""

ABOVE = 2
"""Counts that are kept for a group: the nearest, and one that has its kills too if it goes."""


@dataclass(slots=True)
class _Count:
    """Kills of one group, and when those were seen that no end was attributed to."""

    known: int
    open: deque[float] = field(default_factory=deque)

    def rise(self, counted: int, now: float) -> None:
        self.open.extend([now] * max(0, counted - self.known))
        self.known = counted
        while self.open and self.open[0] < now - WITHIN_S:
            self.open.popleft()


class OomKills:
    """The kills that were counted since this was made and that no end was attributed to."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is where /sys and /proc are."""
        self._root = root
        self._counts: dict[Path, _Count] = {}
        self._own = self._group("self")
        self._groups: dict[int, str] = {}  # of processes, by pid
        self._looked_at = float("-inf")
        self._count((), 0.0)

    def look(self, pids: Iterable[int], now: float) -> None:
        """Note when the counts of these processes rose, to LOOK_S: called often, it asks seldom."""
        if now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        known = self._groups
        self._groups = {pid: self._group(str(pid)) or known.get(pid, self._own) for pid in pids}
        self._count(self._groups.values(), now)

    def explain_one(self, pid: int, now: float) -> bool:
        """True if the kernel has ended a process of the group of `pid`, which is gone, a moment ago
        that no end was attributed to yet.
        """
        group = self._groups.pop(pid, self._own)
        self._count((group,), now)
        asked = next(iter(self._counted(group)), None)
        count = None if asked is None else self._counts[asked[0]]
        if count is None or not count.open:
            return False
        count.open.popleft()
        return True

    def _count(self, groups: Iterable[str], now: float) -> None:
        for group in {self._own, *groups}:
            for path, counted in islice(self._counted(group), ABOVE):
                self._counts.setdefault(path, _Count(counted)).rise(counted, now)

    def _counted(self, group: str) -> Iterator[tuple[Path, int]]:
        """The files that have the kills of this group, the nearest first, and their counts."""
        for path in _sources(self._root, group):
            count = _counted_in(path)
            if count is not None:
                yield path, count

    def _group(self, process: str) -> str:
        """The groups of a process, "" if it has ended: the classic ones of a zombie are the root,
        and nobody is moved there.
        """
        text = content_of(self._root / "proc" / process / "cgroup")
        ended = process != "self" and all(line.endswith(":/") for line in text.splitlines())
        return "" if ended else text


def _sources(root: Path, group: str) -> Iterator[Path]:
    """Files that may have the count, the nearest first; in a container a group's path may not
    exist, and its own is at the top.
    """
    top = root / "sys/fs/cgroup"
    for one in memberships(group):
        if one.unified:
            yield from (place / "memory.events" for place in _upwards(top, one.path))
        elif "memory" in one.controllers:
            base, below = top / "memory", one.path.lstrip("/")
            yield from (base / below / "memory.oom_control", base / "memory.oom_control")
    yield root / "proc/vmstat"


def _upwards(top: Path, path: str) -> Iterator[Path]:
    """The folder of a group, and of those above it, whose counts include its own."""
    group = PurePosixPath(path.lstrip("/"))
    yield from (top / place for place in (group, *group.parents) if ".." not in place.parts)


def _counted_in(path: Path) -> int | None:
    fields = (line.split() for line in content_of(path).splitlines())
    return next((int(one[1]) for one in fields if len(one) == 2 and one[0] == FIELD), None)
