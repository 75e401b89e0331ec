"""The kernel's count of processes that it ended for want of memory, and whom it explains."""

from pathlib import Path

import pytest

from recoverrun.launcher.node.oom_kills import LOOK_S, WITHIN_S, OomKills

GROUPS = {
    "unified": ("0::/job\n", "sys/fs/cgroup/job/memory.events"),
    "unified, in a container": ("0::/\n", "sys/fs/cgroup/memory.events"),
    "classic": ("4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control"),
    "classic, in a container": ("4:memory:/far\n", "sys/fs/cgroup/memory/memory.oom_control"),
    "no group": ("1:cpu:/\n", "proc/vmstat"),
}


class Kernel:
    def __init__(self, root: Path, kind: str) -> None:
        groups, self._place = GROUPS[kind]
        self.root = root
        self._write("proc/self/cgroup", groups)
        self._write("proc/vmstat", "nr_free 7\noom_kill 40\n")
        self.kills = 2
        self.count(0)

    def count(self, more: int) -> None:
        self.kills += more
        self._write(self._place, f"max 9\noom_kill {self.kills}\noom_group_kill 0\n")

    def _write(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("kind", GROUPS)
def test_each_explains_one_end(kind: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, kind)
    kills = OomKills(tmp_path)

    before = kills.explain_one(0.0)
    kernel.count(2)
    explained = [kills.explain_one(1.0) for _ in range(3)]

    assert (before, explained) == (False, [True, True, False])


@pytest.mark.parametrize("later", [False, True])
def test_one_that_was_seen_long_before_explains_no_end(later: bool, tmp_path: Path) -> None:
    """A worker process of a data set may have been ended."""
    kernel = Kernel(tmp_path, "unified")
    kills = OomKills(tmp_path)
    kills.look(0.0)
    kernel.count(1)
    kills.look(LOOK_S)

    assert kills.explain_one(LOOK_S + WITHIN_S + later) is not later


def test_looks_that_follow_each_other_ask_once(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "unified")
    kills = OomKills(tmp_path)
    kills.look(0.0)
    kernel.count(1)
    kills.look(LOOK_S / 2)

    assert kills.explain_one(LOOK_S / 2 + WITHIN_S), "seen only now"


def test_a_system_that_does_not_count_explains_nothing(tmp_path: Path) -> None:
    assert not OomKills(tmp_path).explain_one(0.0)
