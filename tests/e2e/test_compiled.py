"""Scripts that compile their update or their model: nothing of ours is compiled."""

from pathlib import Path

import pytest

from tests.e2e.script_runs import run

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

UPDATES = """
import torch, torch._dynamo
torch._dynamo.config.fail_on_recompile_limit_hit = True
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
update = torch.compile(optimizer.step, backend="eager")
for step in range(2 * torch._dynamo.config.recompile_limit):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    update()
"""


def test_an_update_is_not_compiled_anew_in_each_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UPDATES)

    done = run(script, tmp_path / "run", ranks=1)

    assert done.code == 0, done.text


OUTERMOST = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model = torch.compile(DistributedDataParallel(net), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    model(torch.ones(4, 3) * step).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_model_may_be_compiled_around_ddp(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OUTERMOST)

    done = run(script, tmp_path / "run", ranks=2)

    assert done.code == 0, done.text
    assert "exact-samples" in done.promises, done.text
