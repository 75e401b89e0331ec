"""Free memory is what the tightest of all limits leaves."""

from pathlib import Path

import pytest

from rendezvous.bays.allowance import USUAL, Allowance
from rendezvous.bays.free_memory import UNLIMITED, free, too_much


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


GIB = 1 << 30

MEMINFO = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {8 << 20} kB\n"}
V2 = {"proc/self/cgroup": "0::/job/step\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n"}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, UNLIMITED),
        (MEMINFO, 8 * GIB),
        (MEMINFO | V2, 8 * GIB),
        (
            MEMINFO | V2 | {
                "sys/fs/cgroup/job/step/memory.max": "max",
                "sys/fs/cgroup/job/step/memory.current": "1",
                "sys/fs/cgroup/job/memory.max": str(5 * GIB),
                "sys/fs/cgroup/job/memory.current": str(2 * GIB),
            },
            3 * GIB,
        ),
        (  # in a container, which sees its own group as the root
            MEMINFO | V2 | {
                "sys/fs/cgroup/memory.max": str(4 * GIB),
                "sys/fs/cgroup/memory.current": str(5 * GIB),
            },
            0,
        ),
        (
            MEMINFO | V1 | {
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(3 * GIB),
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
                "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            },
            2 * GIB,
        ),
        (MEMINFO | V2 | {"sys/fs/cgroup/job/step/memory.max": "junk"}, 8 * GIB),
    ],
)  # fmt: skip
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], left: int) -> None:
    assert free(_write(tmp_path, files)) == left


def test_all_bays_have_a_share_of_what_is_free(tmp_path: Path) -> None:
    root = _write(tmp_path, MEMINFO)

    assert not too_much(3 * GIB, 0, USUAL, root)
    assert too_much(4 * GIB, 0, USUAL, root) == (
        "4.0 GiB are needed on this node, 3.2 GiB are to spare"
    )
    assert not too_much(2 * GIB, 2 * GIB, USUAL, root)
    assert too_much(3 * GIB, 2 * GIB, USUAL, root)


def test_little_is_told_in_smaller_units(tmp_path: Path) -> None:
    assert too_much(3 << 20, 0, Allowance(most=100 << 10), _write(tmp_path, MEMINFO)) == (
        "3.0 MiB are needed on this node, 0.1 MiB are to spare"
    )
