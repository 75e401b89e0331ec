"""The repetitions of `make chaos` themselves: several at a time, and failures that are counted."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from tests.chaos import __main__ as chaos
from tests.chaos import snapshots as kills
from tests.e2e.launching import ROOT, Launcher
from tests.warm.launchers import LAUNCHERS

pytestmark = pytest.mark.e2e


@pytest.mark.rest
def test_trials_at_once_are_all_counted() -> None:
    words = ("--trials=2", "--at-once=2", "--only=leader of two")
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    _, row = done.stdout.splitlines()
    assert row.split()[:6] == ["leader", "of", "two", "killed", "2", "0"]


def test_a_trial_that_fails_is_named_and_fails_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Launcher) -> float:
        raise AssertionError("nobody met")

    monkeypatch.setattr(chaos, "TRIALS", {"as ever": lambda _: 1.5, "unmet": fails})
    monkeypatch.setattr(sys, "argv", ["chaos", "--trials=2"])

    assert chaos.main() == 1
    out, err = capsys.readouterr()
    assert [line.split()[-5:-3] for line in out.splitlines()[1:2]] == [["2", "0"]]
    assert out.splitlines()[2].split() == ["unmet", "2", "2"]
    assert err.count("unmet, trial") == 2 and "nobody met" in err


def test_weights_of_a_kill_are_held_against_those_without_one() -> None:
    plain = {0: {"weight": torch.tensor([1.0, 2.0])}}
    other = {0: {"weight": torch.tensor([1.0, 2.5])}}
    broken = {0: {"weight": torch.tensor([1.0, torch.nan])}}

    assert [kills.apart(plain, one) for one in (plain, other, broken, {})] == [
        0.0, 0.5, float("inf"), float("inf"),
    ]  # fmt: skip


def test_a_kill_that_leaves_other_weights_is_named_and_fails_the_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = iter([kills.Tried(0.0, 1), kills.Tried(0.25, 1)])
    monkeypatch.setattr(kills, "KINDS", {"a worker": lambda *_: next(outcomes)})
    monkeypatch.setattr(sys, "argv", ["kills", "--trials=2", "--first=7"])
    monkeypatch.setattr(LAUNCHERS, "forked", nullcontext)

    assert kills.main() == 1
    out, err = capsys.readouterr()
    assert err == "a worker, trial 8: weights are 0.25 apart\n"
    assert out.splitlines()[-1].split() == ["a", "worker", "2", "1", "0.25", "2"]
