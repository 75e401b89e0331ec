"""The tightest limit on the way to the top of a hierarchy is the one that holds."""

from pathlib import Path

import pytest

from recoverrun.doctor.cgroup_limits import CgroupLimits, cgroup_limits


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def test_the_unified_hierarchy(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/system.slice/train.service/workers")
    top = "sys/fs/cgroup/system.slice"
    write(tmp_path, f"{top}/memory.max", "8000")
    write(tmp_path, f"{top}/train.service/memory.max", "max")
    write(tmp_path, f"{top}/train.service/memory.oom.group", "1")
    write(tmp_path, f"{top}/train.service/pids.max", "100")
    write(tmp_path, f"{top}/train.service/pids.current", "40")

    assert cgroup_limits(tmp_path) == CgroupLimits(8000, True, 60, "train.service")


def test_the_classic_one(tmp_path: Path) -> None:
    write(
        tmp_path, "proc/self/cgroup", "5:pids:/a\n4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/"
    )
    write(tmp_path, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    write(tmp_path, "sys/fs/cgroup/pids/a/pids.max", "max")

    assert cgroup_limits(tmp_path) == CgroupLimits(5000, False, -1, "")


@pytest.mark.parametrize("text", ["", "0::/", "0::/gone"])
def test_without_files_there_is_no_limit(tmp_path: Path, text: str) -> None:
    write(tmp_path, "proc/self/cgroup", text)

    assert cgroup_limits(tmp_path) == CgroupLimits(-1, False, -1, "")
