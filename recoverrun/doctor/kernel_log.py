"""The kernel's messages since it started, as far as this user may read them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from recoverrun.config.kernel_files import content_of

LOG = Path("/dev/kmsg")
COUNTERS = Path("/proc/vmstat")

RECORD_BYTES = 8192
"""The longest record that the kernel gives."""

RECORDS = 200_000
NAMED = 4
"""Lines of a kind that are kept: the newest."""

_KILLED = re.compile(r"Killed process \d+ \([^)]*\)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): \d+[^,\n]{0,80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """`oom_kills` is counted by the kernel, also where its log cannot be read."""

    readable: bool
    oom_kills: int
    killed: tuple[str, ...]  # "Killed process 123 (python)"
    xids: tuple[str, ...]  # of NVIDIA's driver


def kernel_log(log: Path = LOG, counters: Path = COUNTERS) -> KernelLog:
    """The log as it is now; reading it never waits."""
    found = re.search(r"^oom_kill (\d+)$", content_of(counters), re.MULTILINE)
    text, readable = _records(log)
    return KernelLog(
        readable=readable,
        oom_kills=int(found[1]) if found else 0,
        killed=tuple(_KILLED.findall(text)[-NAMED:]),
        xids=tuple(_XID.findall(text)[-NAMED:]),
    )


def _records(log: Path) -> tuple[str, bool]:
    """All records, and whether they may be read."""
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "", False
    parts = []
    try:
        for _ in range(RECORDS):
            try:
                record = os.read(fd, RECORD_BYTES)
            except BrokenPipeError:
                continue  # It was overwritten as we came to it: the next one is there.
            if not record:
                break
            parts.append(record)
    except BlockingIOError:
        pass  # There is no more.
    except OSError:
        return "", False
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace"), True
