"""The limits of the cgroups around this process: memory, threads and processes, ends as a group."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recoverrun.config.kernel_files import content_of

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
    for controller, folder in _folders(root):
        unified = controller == ""
        if folder.suffix == ".service":
            unit = unit or folder.name
        if unified or "memory" in controller.split(","):
            name = "memory.max" if unified else "memory.limit_in_bytes"
            memory += _numbers(folder / name)
            group |= content_of(folder / "memory.oom.group") == "1"
        if unified or "pids" in controller.split(","):
            for most in _numbers(folder / "pids.max"):
                pids.append(max(0, most - sum(_numbers(folder / "pids.current"))))
    return CgroupLimits(
        memory_bytes=min(memory, default=UNLIMITED),
        oom_group=group,
        pids_left=min(pids, default=UNLIMITED),
        unit=unit,
    )


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    for line in content_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup" / controllers
        below = top / path.lstrip("/")
        # A container may see its own group at the top, under a path that it does not have.
        for folder in (below, *below.parents):
            if folder == top.parent:
                break
            yield controllers, folder


def _numbers(path: Path) -> list[int]:
    text = content_of(path)
    return [int(text)] if text.isdigit() and int(text) < UNLIMITED_FROM else []
