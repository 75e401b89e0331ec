"""Scripts as people write them: what survives exactly, and what is refused with one sentence."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench import jobs
from tests.e2e.plain import unspoilt

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/e2e/scripts"
BOUND_S = 90
PLAIN_BOUND_S = 30

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


def seldom(*values: object) -> object:
    """A case that only `make matrix` tries."""
    return pytest.param(*values, marks=pytest.mark.matrix)


@dataclass(frozen=True)
class Outcome:
    code: int | None  # None: it did not end by itself
    text: str
    promises: tuple[str, ...]
    notices: tuple[str, ...]

    def weights(self) -> dict[int, float]:
        found = re.findall(r"rank (\d+) weights ([0-9.]+)", self.text)
        return {int(rank): float(total) for rank, total in found}

    def books(self) -> dict[int, str]:
        found = re.findall(r"rank (\d+) books (.*)", self.text)
        return {int(rank): books for rank, books in found}


def run(
    script: Path, folder: Path, *arguments: str, ranks: int = 3, inject: str = "",
    **environment: str,
) -> Outcome:  # fmt: skip
    folder.mkdir(exist_ok=True)
    journal = folder / (inject.replace(":", "-").replace("@", "-") or "whole")
    command = [
        sys.executable,
        "-m",
        "recoverrun",
        f"--nproc-per-node={ranks}",
        f"--run-dir={journal}",
        *([f"--inject={inject}"] if inject else []),
        str(script),
        *arguments,
    ]
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    env |= environment
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BOUND_S,
        text=True,
        check=False,
    )
    records = []
    for path in journal.glob("events.*.jsonl"):
        records += [json.loads(line) for line in path.read_text().splitlines()]
    return Outcome(
        code=done.returncode,
        text=done.stdout,
        promises=tuple(r["promise"] for r in records if r["ev"] == "promise.state"),
        notices=tuple(r["reason"] for r in records if r["ev"] == "notice.give"),
    )


def under_torchrun(
    script: Path, folder: Path, *arguments: str, ranks: int = 3, **environment: str
) -> Outcome:
    def attempt(number: int) -> Outcome:
        place = folder / f"plain{number}"
        place.mkdir(parents=True)
        path, bound = str(script), PLAIN_BOUND_S
        ran = jobs.run(
            "torchrun", ranks, path, arguments, directory=place, timeout_s=bound, **environment
        )
        return Outcome(code=ran.code, text=ran.output + ran.errors, promises=(), notices=())

    return unspoilt(attempt, lambda ran: ran.text, lambda ran: ran.code is None)


@pytest.mark.parametrize(
    ("script", "kills"),
    [
        seldom("strided.py", ["r0@step:4:forward,r1@step:20:between", "r2@step:4:reduce"]),
        seldom("augmenting.py", ["r1@step:3:forward", "r0@step:2:vote,r2@step:5:reduce"]),
        seldom("skipping.py", ["r1@step:4:forward", "r0@step:2:vote"]),
        ("ahead.py", ["r1@step:3:forward,r0@step:6:reduce"]),
        ("irregular.py", ["r0@step:1:vote", "r2@step:4:reduce,r0@step:6:between"]),
    ],
)
def test_a_script_ends_with_the_weights_of_the_run_without_losses(
    script: str, kills: list[str], tmp_path: Path
) -> None:
    whole = run(SCRIPTS / script, tmp_path)
    assert whole.code == 0, whole.text
    assert whole.promises == ("exact-samples",), whole.text
    [expected] = set(whole.weights().values())

    for inject in kills:
        outcome = run(SCRIPTS / script, tmp_path, inject=inject)

        assert outcome.code == 0, outcome.text
        assert not outcome.notices
        assert outcome.weights(), outcome.text
        for rank, total in outcome.weights().items():
            assert total == pytest.approx(expected, abs=2e-8), f"rank {rank} after {inject}"


def test_what_is_executed_again_is_not_counted_again(tmp_path: Path) -> None:
    script = SCRIPTS / "bookkeeping.py"
    plain = under_torchrun(script, tmp_path)
    whole = run(script, tmp_path)
    killed = run(script, tmp_path, inject="r1@step:3:forward,r0@step:6:vote")

    assert (plain.code, whole.code, killed.code) == (0, 0, 0), killed.text
    assert whole.promises == ("exact-samples",) and not killed.notices
    assert whole.books() == plain.books()
    assert killed.books() == {2: plain.books()[2]}
    for outcome in (whole, killed):
        assert set(outcome.weights().values()) == {plain.weights()[2]}
    assert whole.text.count("a batch") == plain.text.count("a batch") == 27


def test_a_module_that_remembers_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    script = SCRIPTS / "bookkeeping.py"
    plain = under_torchrun(script, tmp_path, STATEFUL="1")
    whole = run(script, tmp_path, STATEFUL="1")

    assert (plain.code, whole.code) == (0, 0), whole.text
    assert whole.promises[-1] == "equal-count", "what a module remembers is not in contexts"
    assert (whole.books(), whole.weights()) == (plain.books(), plain.weights())


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (NO_LOOP, "no loop of the script's own code"),
        pytest.param(WAITING_LOOP, "waits here (yield)", marks=pytest.mark.quick),
        (DIVIDED_STATE, "keeps a part of its state on each rank"),
        (UNEVEN, "ranks may take different numbers of steps"),
    ],
)
def test_a_script_that_cannot_be_replayed_is_refused_and_runs_all_the_same(
    text: str, why: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)

    outcome = run(script, tmp_path, ranks=2)

    assert outcome.code == 0, outcome.text
    assert outcome.promises == ("unprotected",), outcome.text
    assert why in outcome.text and "a loss ends this run" in outcome.text


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


@pytest.mark.parametrize(
    ("inject", "dies", "left"),
    [
        seldom("r2@step:3:forward", "", {0, 1}),  # a loss before, of another replica than rank 0's
        ("r1@step:3:forward", "", {2, 3}),
        ("", "finish0", {2, 3}),
    ],
)
def test_a_sharded_checkpoint_is_whole_whoever_is_lost(
    inject: str, dies: str, left: set[int], tmp_path: Path
) -> None:
    script = SCRIPTS / "checkpoints.py"

    outcome = run(script, tmp_path, ranks=4, inject=inject, CHECKPOINT_DIES=dies)

    assert outcome.code == 0, outcome.text
    assert outcome.books() == dict.fromkeys(left, "same"), outcome.text
    if dies:
        assert any("begun again" in notice for notice in outcome.notices), outcome.text


@pytest.mark.quick
def test_what_rank_0_does_alone_is_done_by_its_deputy(tmp_path: Path) -> None:
    script = SCRIPTS / "saving.py"
    whole = run(script, tmp_path / "whole")

    outcome = run(script, tmp_path / "killed", inject="r0@step:3:reduce")

    assert outcome.code == whole.code == 0, outcome.text
    assert whole.books() == dict.fromkeys(range(3), "True 11"), whole.text
    assert outcome.books() == dict.fromkeys((1, 2), "True 11"), outcome.text
    assert all(abs(one - whole.weights()[0]) < 1e-9 for one in outcome.weights().values())
    said = [notice for notice in outcome.notices if "in the place of" in notice]
    expected = [
        r"in the place of rank 0, log was made anew: what it held there is lost",
        r"in the place of lost rank 0 from here on: what the script does on rank 0 alone",
    ]
    assert all(re.search(*pair) for pair in zip(expected, said, strict=True)), said


@pytest.mark.parametrize("way", [seldom("pipeline"), "scaler", seldom("in-backward")])
def test_what_torch_does_to_gradients_by_itself_is_done_to_the_reduced_ones(
    way: str, tmp_path: Path
) -> None:
    script = SCRIPTS / "scaled.py"
    theirs = under_torchrun(script, tmp_path / "theirs", way, ranks=4)

    ours = run(script, tmp_path / "ours", way, ranks=4)

    assert theirs.code == ours.code == 0, ours.text
    assert len(ours.weights()) == 4
    for rank, total in theirs.weights().items():
        assert abs(ours.weights()[rank] - total) < 1e-11, ours.text


@pytest.mark.parametrize(
    ("kind", "way"),
    [("ddp", "norms"), seldom("ddp", "between"), seldom("hsdp", "loosely")],
)
def test_gradients_that_a_script_limits_by_itself_are_the_reduced_ones(
    kind: str, way: str, tmp_path: Path
) -> None:
    """From the first step on, as under torchrun."""
    script, ranks = ROOT / "tests/compat/scripts/hand_clipped.py", 3 if kind == "ddp" else 4
    theirs = under_torchrun(script, tmp_path / "theirs", kind, way, ranks=ranks)

    ours = run(script, tmp_path / "ours", kind, way, ranks=ranks)

    assert theirs.code == ours.code == 0, ours.text
    assert len(ours.weights()) == ranks
    for rank, total in theirs.weights().items():
        assert abs(ours.weights()[rank] - total) < 1e-11, ours.text


def test_a_rank_that_reads_gradients_alone_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Others do something else meanwhile, which waits for that rank."""
    ours = run(SCRIPTS / "read_alone.py", tmp_path)

    assert ours.code == 0, ours.text
    assert ours.promises == ("exact-samples",), ours.text
