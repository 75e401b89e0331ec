"""The memory that may be taken: what the machine has left, and what the control group allows.

A bay that does not fit is not begun: the kernel would end whoever touches the page too many.
"""

from collections.abc import Iterator
from pathlib import Path

from rendezvous.bays.allowance import Allowance
from rendezvous.protocol.control_groups import memberships, upwards

UNLIMITED = 1 << 60
"""A limit above that is none."""

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def too_much(wanted: int, held: int, allowance: Allowance, root: Path = Path("/")) -> str:
    """The reason why a bay of `wanted` bytes is not made beside others of `held` bytes; "" if it
    may be.

    `root` is that of the file systems in which the kernel tells.
    """
    allowed = allowance.bytes_of(free(root) + held)
    if held + wanted <= allowed:
        return ""
    need, most = _written(held + wanted), _written(allowed)
    return f"{need} are needed on this node, {most} are to spare"


def _written(nbytes: int) -> str:
    """A size in the largest unit of which it is not nearly nothing."""
    unit, size = next((one for one in UNITS if nbytes >= one[1] / 20), UNITS[-1])
    return f"{nbytes / size:.1f} {unit}"


def free(root: Path = Path("/")) -> int:
    """Bytes that this process could take; UNLIMITED where nothing tells."""
    return min((_machine(root), *_groups(root)), default=UNLIMITED)


def _machine(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass  # A kernel without /proc: nothing is known.
    return UNLIMITED


def _groups(root: Path) -> Iterator[int]:
    """The memory left in the control groups of this process, of version 1 and 2."""
    try:
        text = (root / "proc/self/cgroup").read_text()
    except OSError:
        return
    for group in memberships(text):
        if group.unified:
            yield from _left(root / "sys/fs/cgroup", group.path, "memory.max", "memory.current")
        elif "memory" in group.controllers:
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _left(root / "sys/fs/cgroup/memory", group.path, *names)


def _left(base: Path, path: str, limit: str, usage: str) -> Iterator[int]:
    """The memory left to the group at `path` and to those that it lies in."""
    for group in upwards(base, path):
        try:
            most, used = ((group / name).read_text().strip() for name in (limit, usage))
            if most.isdigit() and int(most) < UNLIMITED:
                yield max(0, int(most) - int(used))
        except (OSError, ValueError):
            pass  # The root has no limit, or it is another group's to see.
