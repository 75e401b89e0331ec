"""The processes near this one that the kernel has ended for want of memory, as it counts them.

It counts them for each cgroup that has a limit of memory (`oom_kill` in `memory.events`, in version
1 in `memory.oom_control`), whoever's limit was reached, and for the whole machine (`/proc/vmstat`).
It does so before the process is sent SIGKILL.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomKills:
    """Those of the cgroup that this launcher and its workers are in, if it is counted."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._counter = next((path for path in _counters(root) if _count(path) is not None), None)
        self._known = self._now()

    def take(self) -> bool:
        """True if there is one more than have been taken or passed over."""
        more = self._now() > self._known
        self._known += more
        return more

    def pass_over(self) -> None:
        """Those that there are have ended other processes than the next one asked about."""
        self._known = self._now()

    def _now(self) -> int:
        return 0 if self._counter is None else _count(self._counter) or 0


def _count(path: Path) -> int | None:
    """None where nothing is counted."""
    with suppress(OSError, UnicodeDecodeError):
        found = _COUNT.search(path.read_text())
        return None if found is None else int(found[1])
    return None


def _counters(root: Path) -> Iterator[Path]:
    """Files that may count, the nearest first."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / controllers
            name = "memory.oom_control" if controllers else "memory.events"
            # A container may see its own group at the top, under a path that it does not have.
            yield from (top / path.lstrip("/") / name, top / name)
    yield root / "proc/vmstat"
