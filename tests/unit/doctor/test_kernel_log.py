"""The kernel's log is read as far as it goes, and not waited for."""

from pathlib import Path

from recoverrun.doctor.kernel_log import kernel_log

OOM = (
    "4,1201,9931,-;python invoked oom-killer: gfp_mask=0xcc0\n"
    "3,1202,9932,-;Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n"
    "3,1203,9933,-;NVRM: Xid (PCI:0000:4f:00): 79, pid=4711, GPU has fallen off the bus.\n"
)


def test_it_tells_of_processes_that_were_killed_and_of_gpus_that_failed(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(OOM)
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\noom_kill_other 7\n")

    found = kernel_log(tmp_path / "kmsg", tmp_path / "vmstat")

    assert found.readable
    assert found.oom_kills == 3
    assert found.killed == ("Killed process 4711 (python3)",)
    assert found.xids == ("NVRM: Xid (PCI:0000:4f:00): 79",)


def test_where_the_log_may_not_be_read_the_kernel_still_counts(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("oom_kill 1\n")

    found = kernel_log(tmp_path / "none", tmp_path / "vmstat")

    assert (found.readable, found.oom_kills, found.killed) == (False, 1, ())


def test_that_of_this_machine_ends() -> None:
    assert kernel_log().oom_kills >= 0
