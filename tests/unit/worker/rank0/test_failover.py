"""The deputy of rank 0 says what it does, and that it does so no more."""

from types import SimpleNamespace
from typing import Any

from recoverrun.worker.rank0 import failover


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
