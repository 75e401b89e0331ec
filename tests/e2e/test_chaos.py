"""The repetitions of `make chaos` themselves: several at a time, and failures that are counted."""

import subprocess
import sys

import pytest

from tests.chaos import __main__ as chaos
from tests.e2e.launching import ROOT, Launcher

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
