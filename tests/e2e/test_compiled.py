"""A script that compiles its update: nothing of ours is compiled into it."""

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
