"""The deputy of rank 0 says what it does, and that it does so no more."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.rank0 import failover
from recoverrun.worker.tracking.rank0_gate import Rank0Gate


def _worker(*, led: bool) -> tuple[Any, list[str]]:
    said: list[str] = []
    worker = SimpleNamespace(
        runtime=SimpleNamespace(gate=SimpleNamespace(led=led)),
        reporter=SimpleNamespace(notice=said.append),
    )
    return worker, said


def test_the_deputy_says_once_that_rank_0_works_again() -> None:
    worker, said = _worker(led=True)

    failover.give_back(worker)
    failover.give_back(worker)

    assert said == ["gives rank 0's work back to it (checkpoints, logging)"]


def test_who_was_no_deputy_has_nothing_to_say() -> None:
    worker, said = _worker(led=False)

    failover.give_back(worker)

    assert said == []


class _Trainer:
    def __init__(self, first: bool) -> None:
        self._first = first

    should_save = property(lambda self: self._first)


def _asked(monkeypatch: pytest.MonkeyPatch, *, first: bool, deputy: bool) -> tuple[bool, str]:
    """The answer of a framework's property, and what its rank has passed by."""
    monkeypatch.setattr(failover, "is_deputy", lambda worker: deputy)
    gate = Rank0Gate(own_rank=1)
    worker: Any = SimpleNamespace(runtime=SimpleNamespace(gate=gate))
    leads: Any = failover.of_rank_zero(worker, "should_save", vars(_Trainer)["should_save"])
    return leads.__get__(_Trainer(first)), gate.passed_by


def test_who_does_not_lead_in_a_framework_has_passed_that_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = partial(_asked, monkeypatch)

    assert asked(first=False, deputy=False) == (False, "_Trainer.should_save")
    assert asked(first=False, deputy=True) == (True, "")
    assert asked(first=True, deputy=False) == (True, "")
