"""The name of a process, seen by another one."""

import subprocess
import sys
from pathlib import Path

import pytest

from rendezvous.protocol.process_title import short_name

PROGRAM = """
import sys
sys.modules["setproctitle"] = {module}
from rendezvous.protocol.process_title import entitle
entitle("r128", "jobs/train_a_large_model.py")
print(open("/proc/self/comm").read().strip(), titles)
"""

STAND_IN = (
    "type(sys)('setproctitle'); titles = []; sys.modules['setproctitle']."
    "setproctitle = titles.append"
)


@pytest.mark.parametrize(
    ("module", "seen"),
    [
        ("None; titles = []", "r128:train_a_la []"),
        (STAND_IN, "r128:train_a_la ['recoverrun: r128 train_a_large_model.py']"),
    ],
    ids=["short", "setproctitle"],
)
def test_a_process_bears_its_rank_and_script(module: str, seen: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    root = Path(__file__).resolve().parents[4]

    told = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)

    assert told.stdout.strip() == seen


@pytest.mark.parametrize("name", ["my train.py", "train (2).py", "a\tb\n.py"])
def test_a_short_name_has_nothing_at_which_the_list_of_processes_is_split(name: str) -> None:
    assert not set(short_name("r0", name)) & set(" ()\t\n")
