"""A fault that is ordered for the making of parity strikes its snapshot, and once."""

import os
import signal

import pytest

from recoverrun.exchange import ordered_faults
from recoverrun.exchange.ordered_faults import OrderedFaults


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    found: list[object] = []
    launcher = os.getppid()
    monkeypatch.setattr(ordered_faults, "end_keeper", lambda of: found.append(("keeper", of)))
    monkeypatch.setattr(ordered_faults, "end_worker", lambda of, rank: found.append((of, rank)))
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((pid == launcher, number)))
    return found


@pytest.mark.parametrize(
    ("kill", "struck"),
    [
        ("r3@step:10:parity", [(os.getppid(), 3)]),
        ("keeper3@step:10:parity", [("keeper", os.getppid())]),
        ("node3@step:10:parity", [(True, signal.SIGKILL), (False, signal.SIGKILL)]),
    ],
)
def test_it_strikes_whom_it_is_for(ended: list[object], kill: str, struck: list[object]) -> None:
    faults = OrderedFaults(kill)
    faults.amid(5)
    assert not ended

    faults.amid(10)
    faults.amid(10)

    assert ended == struck
