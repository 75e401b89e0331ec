"""Scripts that put another program in the place of their process."""

from pathlib import Path

import pytest

from tests.e2e.script_runs import run

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

ITSELF = """
import os, sys
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execvp(sys.executable, [sys.executable, "-u", *sys.argv])
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draws = torch.Generator().manual_seed(dist.get_rank())
for step in range(8):
    model(torch.randn(3, 4, generator=draws)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
total = sum(p.double().sum().item() for p in model.parameters()) + 9
print(f"rank {dist.get_rank()} weights {total:.9f}")
"""

IN_MID_TRAINING = ITSELF.replace(
    "for step in range(8):\n",
    """for step in range(8):
    if (step, dist.get_rank()) == (4, 1):
        os.execvp("sleep", ["sleep", "600"])
""",
).replace('if "AGAIN" not in os.environ', "if False")

ANOTHER = """
import os, torch
os.execvp("true", ["true"])
"""


def test_a_script_that_begins_itself_anew_is_protected(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ITSELF)

    whole = run(script, tmp_path, ranks=2)
    killed = run(script, tmp_path, ranks=2, inject="r1@step:3:forward")

    assert (whole.code, killed.code) == (0, 0), whole.text + killed.text
    assert killed.promises == ("exact-samples",), killed.text
    assert killed.weights()[0] == pytest.approx(whole.weights()[0], abs=2e-7)


def test_a_rank_that_puts_another_program_in_its_place_in_mid_training_is_lost(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(IN_MID_TRAINING)

    outcome = run(script, tmp_path, ranks=2, RECOVERRUN_RETURNS="0")

    assert outcome.code == 0 and set(outcome.weights()) == {0}, outcome.text
    assert "rank 1 hangs, as its script put sleep in the place of its process" in outcome.text
    assert "unprotected" not in outcome.text


def test_another_program_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ANOTHER)

    outcome = run(script, tmp_path, ranks=2)

    assert outcome.code == 0, outcome.text
    assert "unprotected: the script put true in the place of its process" in outcome.text
