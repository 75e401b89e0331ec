"""Values that a process which came back took over from another rank, and the collectives they
enter.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.worker.make_up import taken_over
from recoverrun.worker.make_up.taken_over import TakenOver

PLACE = "/project/train.py", 43


def said_of(*keys: Any, exact: bool = True, enters: bool = True, times: int = 1) -> list[str]:
    said: list[str] = []
    guarantee = SimpleNamespace(exact=exact, steer=said.append)
    worker: Any = SimpleNamespace(
        acting=False, guarantee=guarantee, env=SimpleNamespace(rank=3), runtime=None
    )
    influence: Any = SimpleNamespace(spread=lambda loops, names: lambda *place: enters)
    taken = TakenOver(worker, influence)
    taken.take(keys, [])
    for _ in range(times):
        taken.exchanges()
    return said


@pytest.fixture(autouse=True)
def _at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_over, "script_place", lambda: PLACE)


def test_a_mean_over_another_rank_s_total_is_told_once() -> None:
    (words,) = said_of("total", ("meter", "sum"), times=2)

    assert words.startswith("the collective at train.py:43 is given what rank 3 took over")
    assert "(meter.sum, total)" in words


def test_nothing_is_told_of_what_does_not_enter_or_was_its_own() -> None:
    assert not said_of("total", enters=False)
    assert not said_of()
    assert not said_of("total", exact=False)
