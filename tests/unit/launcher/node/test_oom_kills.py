"""What the kernel counts of processes that it has ended for want of memory."""

from pathlib import Path

import pytest

from recoverrun.launcher.node.oom_kills import OomKills

V2 = ("0::/job", "sys/fs/cgroup/job/memory.events", "low 0\noom 9\noom_kill {}\n")
V1 = (
    "11:cpu:/\n4:memory:/job\n0::/", "sys/fs/cgroup/memory/job/memory.oom_control",
    "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
)  # fmt: skip
CONTAINER = ("4:memory:/docker/1f", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill {}\n")
MACHINE = ("0::/", "proc/vmstat", "pgfault 5\noom_kill {}\n")


@pytest.mark.parametrize(("cgroup", "counter", "text"), [V2, V1, CONTAINER, MACHINE])
def test_each_is_taken_once(cgroup: str, counter: str, text: str, tmp_path: Path) -> None:
    count = tmp_path / counter
    for path, content in ((tmp_path / "proc/self/cgroup", cgroup), (count, text.format(3))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    kills = OomKills(tmp_path)

    assert not kills.take()
    count.write_text(text.format(5))
    assert [kills.take(), kills.take(), kills.take()] == [True, True, False]
    count.write_text(text.format(7))
    kills.pass_over()
    assert not kills.take()


def test_where_nothing_is_counted_nothing_is_said(tmp_path: Path) -> None:
    assert not OomKills(tmp_path).take()
