"""Scripts that give up the rights of the user that started them, after they have imported torch."""

import os
from pathlib import Path

import pytest

from tests.e2e.script_runs import run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.rest,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user"),
]

# What torch imports later is imported first: the other user may not read this one's Python. For
# the same reason it is not asked here whether lost microbatches get the same samples.
SCRIPT = """
import cProfile, os
import torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
# before ranks meet
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
draws = torch.Generator().manual_seed(dist.get_rank())
for step in range(8):
    loss = model(torch.randn(3, 4, generator=draws)).square().mean()
    # in a step
    loss.backward()
print(f"rank {dist.get_rank()} has trained, as {os.getuid()}")
"""


@pytest.mark.parametrize("when", ["before ranks meet", "in a step"])
def test_a_script_that_does_so_outlives_losses(when: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace(f"# {when}\n", "os.getuid() or os.setuid(65534)\n"))

    done = run(script, tmp_path, ranks=2, inject="r1@step:5:forward")

    assert done.code == 0, done.text
    assert "rank 0 has trained, as 65534" in done.text
    assert "unprotected" not in done.promises, done.text
    assert "continuing on 1 of 2 replicas" in done.text
