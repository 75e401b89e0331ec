"""The limits of the cgroups around this process: memory, threads and processes, ends as a group."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recoverrun.config.kernel_files import content_of
from rendezvous.protocol.control_groups import Membership, memberships, upwards

UNLIMITED = -1
UNLIMITED_FROM = 1 << 60  # The classic hierarchy writes "no limit" as a number.


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    memory_bytes: int  # -1: no limit
    oom_group: bool
    pids_left: int  # -1: no limit
    unit: str  # of systemd, "" if none


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """The tightest limits on the way to the top. `root` is where /sys and /proc are."""
    memory, pids, group, unit = [], [], False, ""
    for within, folder in _folders(root):
        if folder.suffix == ".service":
            unit = unit or folder.name
        if within.unified or "memory" in within.controllers:
            name = "memory.max" if within.unified else "memory.limit_in_bytes"
            memory += _numbers(folder / name)
            group |= content_of(folder / "memory.oom.group") == "1"
        if within.unified or "pids" in within.controllers:
            for most in _numbers(folder / "pids.max"):
                pids.append(max(0, most - sum(_numbers(folder / "pids.current"))))
    return CgroupLimits(
        memory_bytes=min(memory, default=UNLIMITED),
        oom_group=group,
        pids_left=min(pids, default=UNLIMITED),
        unit=unit,
    )


def _folders(root: Path) -> Iterator[tuple[Membership, Path]]:
    for group in memberships(content_of(root / "proc/self/cgroup")):
        top = root / "sys/fs/cgroup" / ",".join(group.controllers)
        for folder in upwards(top, group.path):
            yield group, folder


def _numbers(path: Path) -> list[int]:
    text = content_of(path)
    return [int(text)] if text.isdigit() and int(text) < UNLIMITED_FROM else []
