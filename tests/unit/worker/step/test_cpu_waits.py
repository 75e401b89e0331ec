"""The time for which a process had no CPU, by what two kernels have written about it."""

from pathlib import Path

import pytest

from recoverrun.worker.step.cpu_waits import CpuWaits, throttled_ms, waited_ms

# Recorded under Linux 6.18, before and after two seconds of a loop in a group that may have a tenth
# of a CPU, on a machine whose CPUs others had, too.
SCHEDSTAT = (b"41698440 318640930 43\n", b"242060600 2123539879 138\n")
FIRST = b"""nr_periods 22
nr_throttled 17
throttled_time 344891516
nr_bursts 0
burst_time 0
"""
# The form of the second cgroups, with the same figures.
SECOND = b"""usage_usec 201312
user_usec 190201
system_usec 11111
nr_periods 22
nr_throttled 17
throttled_usec 344891
nr_bursts 0
burst_usec 0
"""


def test_what_kernels_write_is_read_in_milliseconds() -> None:
    before, after = map(waited_ms, SCHEDSTAT)
    assert after - before == pytest.approx(1804.898949)
    assert throttled_ms(FIRST) == pytest.approx(344.891516)
    assert throttled_ms(SECOND) == pytest.approx(344.891)


@pytest.mark.parametrize("content", [b"", b"\n", b"1\n", b"1 x 3\n", b"throttled_usec\n"])
def test_what_cannot_be_read_is_no_wait(content: bytes) -> None:
    assert waited_ms(content) == throttled_ms(content) == 0.0


class Node:
    """/proc and /sys of a node, whose files are written anew in place."""

    def __init__(self, root: Path, groups: str, *stats: str) -> None:
        self.root, self.stats = root, [root / "sys/fs/cgroup" / name for name in stats]
        self.schedstat = root / "proc/self/schedstat"
        self.schedstat.parent.mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(groups)
        self.waits(0.0)
        for stat in self.stats:
            stat.parent.mkdir(parents=True, exist_ok=True)
            stat.write_text("throttled_usec 0\n")

    def waits(self, ms: float) -> None:
        self.schedstat.write_text(f"5 {int(ms * 1e6)} 7\n")

    def throttles(self, place: int, text: str) -> None:
        self.stats[place].write_text(f"nr_periods 1\n{text}\n")


def test_a_wait_is_for_others_unless_a_limit_was_used_up(tmp_path: Path) -> None:
    """Also one of a group above: of a pod, say."""
    node = Node(tmp_path, "0::/pod/box\n", "pod/box/cpu.stat", "pod/cpu.stat")
    cpu = CpuWaits(tmp_path)

    node.waits(12.0)
    assert cpu.spent_ms() == {"cpu": pytest.approx(12.0), "throttled": 0.0}

    node.waits(40.0)
    node.throttles(1, "throttled_usec 20000")
    assert cpu.spent_ms() == {"cpu": pytest.approx(8.0), "throttled": pytest.approx(20.0)}

    node.waits(41.5)
    node.throttles(1, "throttled_usec 90000")  # of all CPUs together: more than we waited
    assert cpu.spent_ms() == {"cpu": 0.0, "throttled": pytest.approx(1.5)}


def test_a_limit_of_the_first_cgroups_counts_as_well(tmp_path: Path) -> None:
    node = Node(tmp_path, "9:pids:/\n4:cpu,cpuacct:/job\n", "cpu,cpuacct/job/cpu.stat")
    cpu = CpuWaits(tmp_path)

    node.waits(10.0)
    node.throttles(0, "throttled_time 4000000")

    assert cpu.spent_ms() == {"cpu": pytest.approx(6.0), "throttled": pytest.approx(4.0)}


def test_a_short_wait_is_not_told_and_limits_are_not_read(tmp_path: Path) -> None:
    node = Node(tmp_path, "0::/\n", "cpu.stat")
    cpu = CpuWaits(tmp_path)

    node.waits(0.9)
    node.throttles(0, "throttled_usec 700")
    assert cpu.spent_ms() == {}

    node.waits(2.9)
    assert cpu.spent_ms() == {"cpu": pytest.approx(1.3), "throttled": pytest.approx(0.7)}


def test_a_kernel_that_does_not_count_tells_nothing(tmp_path: Path) -> None:
    assert CpuWaits(tmp_path).spent_ms() == {}


def test_this_kernel_counts() -> None:
    schedstat = Path("/proc/self/schedstat")
    if not schedstat.exists():
        pytest.skip("a kernel without CONFIG_SCHED_INFO")

    assert waited_ms(schedstat.read_bytes()) > 0.0
