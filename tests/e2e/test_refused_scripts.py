"""Scripts that cannot be made up exactly: refused, made up with other samples, or at fault."""

import signal
from pathlib import Path

import pytest

from tests.e2e.script_runs import run

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

PREAMBLE = """
import random, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank = dist.get_rank()
"""


NO_LOOP = (
    PREAMBLE
    + """
def train(steps):
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    if steps:
        train(steps - 1)
train(5)
"""
)


WAITING_LOOP = (
    PREAMBLE
    + """
def steps():
    for i in range(6):
        x = yield
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
trainer = steps()
next(trainer)
for i in range(5):
    trainer.send(torch.randn(3, 4))
"""
)


NUMBERS_BETWEEN = (
    PREAMBLE
    + """
random.seed(rank)
for i in range(8):
    x = torch.tensor([[random.random() for _ in range(4)]])
    loss = model(x).square().mean()
    loss.backward()
    random.random()
    optimizer.step()
    optimizer.zero_grad()
"""
)


OWN_DATA = (
    "import contextvars\n"
    + PREAMBLE
    + """
train = contextvars.ContextVar("train")
train.set(torch.randn(400, 4, generator=torch.Generator().manual_seed(rank)))
for i in range(8):
    loss = model(train.get()[3 * i : 3 * i + 3]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


OWN_KEY = (
    PREAMBLE
    + """
train = {rank: torch.randn(400, 4)}
for i in range(8):
    loss = model(train[dist.get_rank()][3 * i : 3 * i + 3]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)


SAME_ERROR = (
    PREAMBLE
    + """
for i in range(8):
    if i == STEP:
        raise ValueError("bad shard 8812")
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
"""
)


UNEVEN = (
    PREAMBLE
    + """
with model.join():
    for i in range(4 + rank):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
"""
)


DIVIDED_STATE = (
    PREAMBLE.replace(
        "torch.optim.SGD(model.parameters(),", "Zero(model.parameters(), torch.optim.SGD,"
    ).replace(
        "import random",
        "from torch.distributed.optim import ZeroRedundancyOptimizer as Zero\nimport random",
    )
    + """
for i in range(4):
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
"""
)


ENDS = "a loss ends this run"
FIRST = "(the first one is taken after 10 s)"
NEVER = ("--snapshot-every=0",)


@pytest.mark.parametrize(
    ("text", "why", "options", "promise", "words"),
    [
        (NO_LOOP, "no loop of the script's own code", (), "unprotected", ENDS),
        pytest.param(
            *(WAITING_LOOP, "waits here (yield)", NEVER, "unprotected", ENDS),
            marks=pytest.mark.quick,
        ),
        (DIVIDED_STATE, "keeps a part of its state on each rank", (), "rollback", FIRST),
        (UNEVEN, "ranks may take different numbers of steps", (), "rollback", FIRST),
    ],
)
def test_a_script_that_cannot_be_replayed_is_refused_and_runs_all_the_same(
    text: str, why: str, options: tuple[str, ...], promise: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)

    outcome = run(script, tmp_path, ranks=2, options=options)

    assert outcome.code == 0, outcome.text
    assert outcome.promises == (promise,), outcome.text
    assert why in outcome.text and words in outcome.text


def test_ranks_that_take_different_numbers_of_steps_do_not_wait_for_each_others_snapshots(
    tmp_path: Path,
) -> None:
    """Rank 0, which names them, has no more steps."""
    script = tmp_path / "train.py"
    script.write_text(UNEVEN.replace("4 + rank", "5 + 20 * rank"))

    outcome = run(script, tmp_path, ranks=2, options=["--snapshot-every=auto"])

    assert outcome.code == 0, outcome.text
    assert outcome.promises == ("rollback",), outcome.text


@pytest.mark.quick
def test_an_unprotected_script_ends_at_a_loss_as_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NO_LOOP)

    outcome = run(script, tmp_path, ranks=2, inject="r1@step:2:forward")

    assert outcome.code == 137, outcome.text
    assert "FAILED: rank 1" in outcome.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(NUMBERS_BETWEEN, "drawn after a backward", marks=pytest.mark.quick),
        (OWN_DATA, "come from a source that cannot be replayed"),
        (OWN_KEY, "another rank holds train[1], and this one does not"),
    ],
)
def test_samples_that_cannot_be_told_are_made_up_with_fresh_data(
    text: str, why: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)

    outcome = run(script, tmp_path, ranks=2, inject="r1@step:3:forward")

    assert outcome.code == 0, outcome.text
    assert why in outcome.text
    assert outcome.promises[-1] == "equal-count" or any(
        "equal-count" in notice for notice in outcome.notices
    ), outcome.text


@pytest.mark.parametrize("step", [0, 3])
def test_the_script_s_own_error_on_all_ranks_is_one_report(step: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SAME_ERROR.replace("STEP", str(step)))

    outcome = run(script, tmp_path)

    assert outcome.code == 1
    report = outcome.text[outcome.text.index("FAILED") :].strip().splitlines()
    assert "ValueError: bad shard 8812" in report[0]
    assert len(report) <= 12
    assert "start again" not in outcome.text, "an error of the script is no loss"


OF_ANOTHER_TYPE = (
    PREAMBLE.replace(
        "model =",
        "types = {1: torch.float64}\n"
        "model = torch.nn.Linear(4, 1).to(types.get(dist.get_rank()))\n"
        "model =",
    ).replace("(torch.nn.Linear(4, 1))", "(model)")
    + """
for i in range(4):
    loss = model(torch.randn(3, 4, dtype=next(model.parameters()).dtype)).square().mean()
    loss.backward()
    optimizer.step()
"""
)


def test_row_42_gradients_of_another_type_end_the_job_as_under_torchrun(tmp_path: Path) -> None:
    """The first step is torch's own: gloo, which meets them in it, ends the process."""
    path = tmp_path / "script.py"
    path.write_text(OF_ANOTHER_TYPE)

    outcome = run(path, tmp_path, ranks=2)

    assert outcome.code in (1, 128 + signal.SIGABRT), outcome.text
    assert "collective mismatch in your code" in outcome.text
    assert outcome.text.count("all ranks start again") <= 3
    assert "FAILED: rank" in outcome.text


OWN_OPTIMIZER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
for i in range(12):
    model.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    flat = torch.cat([one.grad.flatten() for one in model.parameters()]).square()
    dist.all_reduce(flat)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad / (1 + flat.sum())
"""


def test_a_script_without_an_optimizer_is_told_that_it_is_not_protected(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(OWN_OPTIMIZER)

    outcome = run(path, tmp_path, ranks=2)

    assert outcome.code == 0, outcome.text
    assert outcome.text.count("unprotected so far: the script wraps no model") == 1, outcome.text
