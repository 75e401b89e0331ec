"""The number of cores for the workers of a node."""

import os
from pathlib import Path

import pytest

from recoverrun.config.cpu_count import cores, physical


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _threads(root: Path, siblings: list[str]) -> None:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    _write(root, {folder.format(cpu): text for cpu, text in enumerate(siblings)})


def test_two_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    _threads(tmp_path, ["0,2", "1,3", "0,2", "1,3"])

    assert physical({0, 1, 2, 3}, tmp_path) == 2
    assert physical({1, 3}, tmp_path) == 1


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 8), ("350000 100000", 3), ("20000 100000", 1)]
)
@pytest.mark.parametrize("group", ["", "pod/box"])
def test_a_quota_of_the_cgroup_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int, group: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    files = {"proc/self/cgroup": "0::/pod/box\n", f"sys/fs/cgroup/{group}/cpu.max": quota}
    _write(tmp_path, files)

    assert cores(tmp_path) == expected


def test_a_quota_of_the_older_cgroups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    files = {
        "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    _write(tmp_path, files)

    assert cores(tmp_path) == 4


def test_where_nothing_can_be_read_the_affinity_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5})

    assert cores(tmp_path) == 2
