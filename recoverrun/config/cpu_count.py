"""The number of cores that this launcher and its workers may use: affinity and quotas respected.

A core is counted once however many hardware threads it has, as torch counts: two threads of one
core gain nothing on the arithmetic of training. What limits a container (the quota of its cgroup)
limits us as well, although the kernel shows all cores to it.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from recoverrun.config.kernel_files import content_of
from rendezvous.protocol.control_groups import memberships, upwards


def cores(root: Path = Path("/")) -> int:
    """The number of cores, at least 1. `root` is where /sys and /proc are."""
    allowed = physical(os.sched_getaffinity(0), root)
    return max(1, int(min([allowed, *_quotas(root)])))


def physical(cpus: Collection[int], root: Path = Path("/")) -> int:
    """The number of cores that these hardware threads belong to."""
    found = set()
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        found.add(content_of(siblings) or str(cpu))
    return len(found)


def _quotas(root: Path) -> Iterator[float]:
    """The limits, in cores, of every cgroup around us that limits its share of CPU time."""
    for group in memberships(content_of(root / "proc/self/cgroup")):
        if not group.unified and "cpu" not in group.controllers:
            continue
        top = root / "sys/fs/cgroup" / ("" if group.unified else "cpu")
        for folder in upwards(top, group.path):
            quota = _unified(folder) if group.unified else _classic(folder)
            if quota > 0:
                yield quota


def _unified(folder: Path) -> float:
    quota, _, period = content_of(folder / "cpu.max").partition(" ")
    return _ratio(quota, period)


def _classic(folder: Path) -> float:
    return _ratio(content_of(folder / "cpu.cfs_quota_us"), content_of(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float:
    """0.0: no limit."""
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return 0.0
    return int(quota) / int(period)
