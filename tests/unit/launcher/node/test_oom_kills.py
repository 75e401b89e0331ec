"""The kernel's count of processes that it ended for want of memory, and whom it explains."""

from pathlib import Path

import pytest

from recoverrun.launcher.node.oom_kills import LOOK_S, WITHIN_S, OomKills

PID = 31

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
        self.groups = groups
        self._write("proc/self/cgroup", groups)
        self.move(PID, groups)
        self._write("proc/vmstat", "nr_free 7\noom_kill 40\n")
        self.kills = 2
        self.count(0)

    def move(self, pid: int, groups: str) -> None:
        self._write(f"proc/{pid}/cgroup", groups)

    def count(self, more: int, place: str = "") -> None:
        self.kills += more
        self._write(place or self._place, f"max 9\noom_kill {self.kills}\noom_group_kill 0\n")

    def remove(self, place: str) -> None:
        (self.root / place).unlink()

    def _write(self, place: str, text: str) -> None:
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("kind", GROUPS)
def test_each_explains_one_end(kind: str, tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, kind)
    kills = OomKills(tmp_path)

    before = kills.explain_one(PID, 0.0)
    kernel.count(2)
    explained = [kills.explain_one(PID, 1.0) for _ in range(3)]

    assert (before, explained) == (False, [True, True, False])


@pytest.mark.parametrize("later", [False, True])
def test_one_that_was_seen_long_before_explains_no_end(later: bool, tmp_path: Path) -> None:
    """A worker process of a data set may have been ended."""
    kernel = Kernel(tmp_path, "unified")
    kills = OomKills(tmp_path)
    kills.look((PID,), 0.0)
    kernel.count(1)
    kills.look((PID,), LOOK_S)

    assert kills.explain_one(PID, LOOK_S + WITHIN_S + later) is not later


def test_looks_that_follow_each_other_ask_once(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "unified")
    kills = OomKills(tmp_path)
    kills.look((PID,), 0.0)
    kernel.count(1)
    kills.look((PID,), LOOK_S / 2)

    assert kills.explain_one(PID, LOOK_S / 2 + WITHIN_S), "seen only now"


def test_a_system_that_does_not_count_explains_nothing(tmp_path: Path) -> None:
    assert not OomKills(tmp_path).explain_one(PID, 0.0)


OWN = {
    "unified": ("0::/job/rank1\n", "sys/fs/cgroup/job/rank1/memory.events"),
    "classic": ("4:memory:/rank1\n0::/\n", "sys/fs/cgroup/memory/rank1/memory.oom_control"),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_process_in_a_group_of_its_own_is_explained_by_that_alone(
    kind: str, tmp_path: Path
) -> None:
    """A wrapper, or the script, gives each rank a limit of its own."""
    kernel, (groups, place) = Kernel(tmp_path, kind), OWN[kind]
    kernel.count(0, place)
    kernel.move(PID, groups)
    kills = OomKills(tmp_path)
    kills.look((PID, PID + 1), 0.0)

    kernel.count(1, place)
    kernel.move(PID, "4:memory:/\n0::/\n" if kind == "classic" else groups)  # a zombie's
    kills.look((PID, PID + 1), LOOK_S)

    assert not kills.explain_one(PID + 1, LOOK_S)
    assert [kills.explain_one(PID, LOOK_S) for _ in range(2)] == [True, False]


def test_kills_before_a_process_was_moved_into_a_group_are_not_its_own(tmp_path: Path) -> None:
    kernel, (groups, place) = Kernel(tmp_path, "unified"), OWN["unified"]
    kills = OomKills(tmp_path)
    kernel.count(1, place)
    kernel.move(PID, groups)
    kills.look((PID,), 0.0)

    assert not kills.explain_one(PID, 1.0)


@pytest.mark.parametrize("removed", [False, True])
def test_a_group_without_a_count_is_counted_in_the_one_above(removed: bool, tmp_path: Path) -> None:
    """systemd removes a scope with its last process; a leaf may have no memory controller."""
    kernel, (groups, place) = Kernel(tmp_path, "unified"), OWN["unified"]
    if removed:
        kernel.count(0, place)
    kernel.move(PID, groups)
    kills = OomKills(tmp_path)
    kills.look((PID,), 0.0)

    kernel.count(1)
    if removed:
        kernel.remove(place)

    assert [kills.explain_one(PID, 1.0) for _ in range(2)] == [True, False]
