"""A kill strikes where it is meant to, and nowhere else."""

import signal

import pytest

from recoverrun.worker.step import failpoints
from recoverrun.worker.step.failpoints import Failpoints


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    signals: list[int] = []
    monkeypatch.setattr(failpoints, "end", lambda _, number: signals.append(number))
    return signals


def test_a_kill_strikes_its_rank_in_its_step_and_phase(killed: list[int]) -> None:
    own, other = (Failpoints("r1@step:2:forward", rank, lambda: None) for rank in (1, 0))
    for step in range(4):
        other.strike(step, "forward")
        own.strike(step, "backward")
    assert not killed

    own.strike(2, "forward")

    assert killed == [signal.SIGKILL]


def test_where_nothing_is_protected_a_kill_strikes_before_its_update(killed: list[int]) -> None:
    failpoints = Failpoints("r1@step:2:forward", 1, lambda: None)
    for refused in (False, True):
        failpoints.update(refused=refused)
    assert not killed

    failpoints.update(refused=True)

    assert killed == [signal.SIGKILL]


def test_a_script_that_may_be_protected_yet_is_not_struck_by_its_updates(killed: list[int]) -> None:
    failpoints = Failpoints("r1@step:0:forward", 1, lambda: None)

    failpoints.update(refused=False)

    assert not killed
