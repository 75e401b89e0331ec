"""The freezer of control groups: what is in a frozen group runs no code until somebody thaws it.

The kernel shows such a process as one that waits for a disk (cgroup v1) or sleeps (v2), where it
stood. The group itself says that it is frozen, also if one above it is.
"""

from collections.abc import Iterator
from pathlib import Path

from recoverrun.config.kernel_files import content_of
from rendezvous.protocol.control_groups import memberships


def is_frozen(pid: int, root: Path = Path("/")) -> bool:
    """True if the group of this process is frozen. `root` is where /sys and /proc are."""
    return any(said in content_of(path).splitlines() for path, said in _sources(pid, root))


def _sources(pid: int, root: Path) -> Iterator[tuple[Path, str]]:
    """The files that may tell, each with the line that says so."""
    top = root / "sys/fs/cgroup"
    for group in memberships(content_of(root / "proc" / str(pid) / "cgroup")):
        below = group.path.lstrip("/")
        if group.unified:  # alone or beside v1
            yield top / below / "cgroup.events", "frozen 1"
            yield top / "unified" / below / "cgroup.events", "frozen 1"
        elif "freezer" in group.controllers:
            yield top / "freezer" / below / "freezer.state", "FROZEN"
