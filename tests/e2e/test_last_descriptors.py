"""A script that has no descriptor left as it ends has ended well, as under torchrun."""

import os
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT
from tests.warm.launchers import LAUNCHERS

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.timeout(300)]

WITHIN_S = 240.0

SCRIPT = """
import resource
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_end_of_a_script_takes_no_descriptor(nproc: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    command = [
        sys.executable, "-m", "recoverrun", f"--nproc-per-node={nproc}",
        f"--run-dir={tmp_path}/run", str(script),
    ]  # fmt: skip

    with (tmp_path / "output").open("wb") as output:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        started = LAUNCHERS.start(command, cwd=tmp_path, env=environ, stdout=output)
        code = started.wait(timeout=WITHIN_S)

    said = (tmp_path / "output").read_text()
    assert code == 0, said
    assert "is lost" not in said
