"""Groups of a script that got another half, that it destroys, or makes anew."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.launching import ROOT
from tests.e2e.script_runs import SCRIPTS, run

pytestmark = pytest.mark.e2e

RELEASED = """
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from recoverrun.worker.groups import process_groups
from rendezvous.protocol.layout import Layout

c10d._new_process_group_helper = process_groups.wrapping(c10d._new_process_group_helper)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
held = dist.new_group([0])
process_groups.release(Layout(((0,),)))
print(dist.get_backend(held), dist.get_rank(held), dist.get_process_group_ranks(held))
dist.destroy_process_group(held)
dist.destroy_process_group()
"""


def test_a_group_within_a_replica_stays_known_to_who_holds_it() -> None:
    """FSDP1 holds one; torch asks for its backend to log an error, and must not fail at that."""
    done = subprocess.run(
        [sys.executable, "-c", RELEASED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "gloo 0 [0]\n"


def weights(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"weights (\S+)", text)]


@pytest.mark.rest
def test_training_goes_on_as_proved_once_its_groups_are_destroyed(tmp_path: Path) -> None:
    ended = run(SCRIPTS / "grouped_anew.py", tmp_path / "whole", "in-training", ranks=2)

    assert ended.code == 0, ended.text
    assert ended.promises == ("exact-samples",), ended.text


@pytest.mark.rest
@pytest.mark.parametrize("at", [3, 9])
def test_a_loss_before_or_after_the_default_group_is_made_anew_is_survived(
    at: int, tmp_path: Path
) -> None:
    whole = run(SCRIPTS / "grouped_anew.py", tmp_path / "whole", ranks=2)

    killed = run(
        SCRIPTS / "grouped_anew.py", tmp_path / "killed", ranks=2, inject=f"r1@step:{at}:forward"
    )

    assert (whole.code, killed.code) == (0, 0), whole.text + killed.text
    assert whole.text.count("met 2") == 4, whole.text
    assert killed.promises == ("exact-samples",), killed.text
    assert weights(killed.text) == pytest.approx(weights(whole.text)[:1], abs=1e-6)
