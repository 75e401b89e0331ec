"""Shared memory of a worker that is killed: Python's tracker beside it still removes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from recoverrun.launcher.node.trackers import is_tracker

WORKER = """
import os, signal, subprocess, sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

mine = SharedMemory(create=True, size=1 << 20)
loader = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
tracker = resource_tracker._resource_tracker._pid
os.write({line}, f"{{mine.name}} {{tracker}} {{loader.pid}}\\n".encode())
signal.pause()
"""

LAUNCHER = """
import os, select, signal, sys
from recoverrun.launcher.node import process
from recoverrun.launcher.node.trackers import is_tracker

process.adopt_orphans()
guardian = process.Guardian("/nowhere/in/any/environment")
told, line = os.pipe()
worker = process.spawn([sys.executable, "-c", WORKER.format(line=line)], os.environ, handed=(line,))
os.close(line)
name, tracker, loader = os.read(told, 1000).decode().split()
print(name, is_tracker(int(tracker)), is_tracker(worker.pid), is_tracker(int(loader)))
if sys.argv[1] == "worker":
    os.kill(worker.pid, signal.SIGKILL)
elif sys.argv[1] == "group":
    worker.signal(signal.SIGKILL)
if sys.argv[1] != "job":
    select.select([worker.pidfd], [], [])
    worker.reap()
process.sweep()
print(len(process.children() - guardian.pids))
guardian.dismiss()
"""


@pytest.mark.parametrize("killed", ["worker", "group", "job"])
def test_what_a_killed_worker_has_in_shared_memory_is_removed(killed: str) -> None:
    """`killed`: the worker by anybody, all of its group by us, or all that is left of a job."""
    command = [sys.executable, "-c", f"WORKER = {WORKER!r}\n{LAUNCHER}", killed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    name, *found, left = done.stdout.split()

    assert found == ["True", "False", "False"], done.stderr
    assert left == "0"
    assert not Path("/dev/shm", name).exists()


SHARING = """
import os, signal, torch
torch.multiprocessing.set_sharing_strategy("file_system")
name = torch.ones(1000).share_memory_().untyped_storage()._share_filename_cpu_()[1].decode()
os.write({line}, name.encode() + b"\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""

END_OF_A_JOB = """
import os, select, sys
from pathlib import Path
from recoverrun.launcher.node import process
from recoverrun.launcher.node.trackers import is_tracker

process.adopt_orphans()
told, line = os.pipe()
worker = process.spawn([sys.executable, "-c", WORKER.format(line=line)], os.environ, handed=(line,))
os.close(line)
name = os.read(told, 1000).decode().strip()
select.select([worker.pidfd], [], [])
print(name, worker.reap(), [is_tracker(pid) for pid in process.children()])
process.sweep()
"""


def test_tensors_that_a_killed_process_shared_by_file_names_are_removed_at_the_end_of_a_job() -> (
    None
):
    """By torch's own manager, which the job's end finds alive."""
    command = [sys.executable, "-c", f"WORKER = {SHARING!r}\n{END_OF_A_JOB}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    name, *found = done.stdout.split()

    assert found == ["-9", "[True]"], done.stderr
    assert not Path(f"/dev/shm{name}").exists()


def test_only_the_command_of_a_tracker_is_one() -> None:
    code = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", code, "from multiprocessing.resource_tracker import main"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        assert not is_tracker(other.pid)
        assert other.stdin is not None
        other.stdin.close()
    assert not is_tracker(other.pid)
