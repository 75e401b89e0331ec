"""Control groups of a process, and where the kernel tells of them (cgroups(7), both versions)."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Membership(NamedTuple):
    """A group that a process is in. `controllers`: none in version 2, which has all in one."""

    controllers: tuple[str, ...]
    path: str  # as the process itself may see it

    @property
    def unified(self) -> bool:
        """True in version 2."""
        return not self.controllers


def memberships(text: str) -> Iterator[Membership]:
    """The groups of a process, by its /proc/PID/cgroup."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield Membership(tuple(controllers.split(",")) if controllers else (), path)


def upwards(top: Path, path: str) -> Iterator[Path]:
    """The folder of the group at `path`, of those around it, and `top`, that of all.

    Some may not be there: a container sees its own group at the top, under a path that it has not.
    """
    own = top / path.lstrip("/")
    for folder in (own, *own.parents):
        if folder == top.parent:
            return
        yield folder
