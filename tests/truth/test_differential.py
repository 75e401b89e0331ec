"""The comparison with torchrun sees what it should, and finds no difference in a few rows.

`make compat` compares all of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.rows import ROWS
from tests.truth.differential import OBSERVER, Notes, Observed, _notes, differences, paired, tried

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

SAMPLE = ("ddp-unused", "clipped-ddp-values", "recipe-hsdp", "fsdp1-bf16")
SELDOM = ("by-hand-flat", "fsdp1-orig-params")


@pytest.mark.parametrize(
    "name", [*SAMPLE, *(pytest.param(name, marks=pytest.mark.matrix) for name in SELDOM)]
)
def test_a_run_without_a_loss_is_the_run_under_torchrun(name: str, tmp_path: Path) -> None:
    [row] = [row for row in ROWS if row.name == name]

    verdict = tried(paired(row), tmp_path)

    assert not verdict.problems, verdict.line
    assert verdict.promise == row.promise, "the observer is in nobody's way"


def observed(*events: tuple[str, list[object]], printed: tuple[str, ...] = ()) -> Observed:
    return Observed(code=0, ranks=(Notes(events=events, printed=printed),), said="")


def found(one: Observed, two: Observed, *, bitwise: bool = True) -> list[str]:
    return list(differences(one, two, bitwise=bitwise))


@pytest.mark.quick
def test_any_other_bit_event_or_line_is_a_difference() -> None:
    tensor, other = ["torch.float64[1]", "aa", [1.0]], ["torch.float64[1]", "bb", [1.0 + 1e-14]]
    one = observed(("forward", ["1"]), ("backward", [tensor, None]), printed=("loss 1",))

    assert not found(one, one)
    for two in (
        observed(("forward", ["1"]), ("backward", [other, None]), printed=("loss 1",)),
        observed(("forward", ["2"]), ("backward", [tensor, None]), printed=("loss 1",)),
        observed(("forward", ["1"]), ("backward", [tensor, tensor]), printed=("loss 1",)),
        observed(("forward", ["1"]), ("gradients", [tensor, None]), printed=("loss 1",)),
        observed(("forward", ["1"]), printed=("loss 1",)),
        observed(("forward", ["1"]), ("backward", [tensor, None]), printed=("loss 2",)),
        Observed(code=1, ranks=one.ranks, said=""),
    ):
        assert len(found(one, two)) == 1


@pytest.mark.quick
def test_a_script_that_fails_under_both_is_not_the_same() -> None:
    failed = Observed(code=1, ranks=observed(("exception", ["no such module"])).ranks, said="")

    assert found(failed, failed) == ["exit code 1 and 1"]


@pytest.mark.quick
def test_another_order_of_sums_is_told_from_another_sum() -> None:
    def gradient(digest: str, number: float) -> Observed:
        return observed(("backward", [["torch.float64[2]", digest, [number, 5.0]]]))

    one = gradient("aa", 1.0)

    assert not found(one, gradient("bb", 1.0 + 1e-13), bitwise=False)
    assert found(one, gradient("bb", 1.0 + 1e-13))
    assert found(one, gradient("bb", 1.0 + 1e-9), bitwise=False)


SCRIPT = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
torch.manual_seed(0)
for step in range(2):
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    print("step", step)
raise LookupError("that was all")
"""


def test_the_observer_notes_what_a_script_sees_and_computes(tmp_path: Path) -> None:
    def notes(rate: str) -> Notes:
        folder = tmp_path / rate
        folder.mkdir()
        env = {**os.environ, "PYTHONPATH": str(OBSERVER), "OBSERVER_LOG": str(folder), "RANK": "0"}
        done = subprocess.run(
            [sys.executable, "-c", "import torch; torch.manual_seed(1)\n" + SCRIPT, rate],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1 and "that was all" in done.stderr, done.stderr
        assert not done.stdout
        return _notes(folder, 0)

    slow, fast = notes("0.1"), notes("0.2")

    step = ["forward", "backward", "gradients", "parameters"]
    assert [kind for kind, _ in slow.events] == [*step, *step, "exception"]
    assert slow.printed == ("step 0", "step 1")
    assert slow.events[:3] == fast.events[:3], "the first gradient is the same"
    assert slow.events[3] != fast.events[3]
    assert slow.events[5] != fast.events[5]
