"""Groups of a script that got another half: whoever holds one from before may go on asking."""

import os
import subprocess
import sys

import pytest

from tests.e2e.launching import ROOT

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
