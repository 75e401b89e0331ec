"""Whoever refuses leaves once nobody asks any more, and at some time in any case."""

from types import SimpleNamespace
from typing import Any

import pytest

from recoverrun.launcher.network import farewell
from recoverrun.launcher.network.connections import Word
from recoverrun.launcher.network.frames import NOBODY
from rendezvous.protocol.formation_messages import Beat, Join

JOIN = Join(run_id="job", node="b", incarnation="b", node_rank=1, nproc=1, version="1")


class Others:
    """Launchers that say `message` at each of these times, and the clock."""

    def __init__(self, message: Any, at: list[float]) -> None:
        self.now = 100.0
        self._message, self._at = message, [100.0 + one for one in at]

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout_s: float) -> set[object]:
        self.now += timeout_s
        return set()

    def read(self, _ready: object, _now: float) -> list[Word]:
        said = [at for at in self._at if at <= self.now]
        self._at = self._at[len(said) :]
        return [Word("b", (NOBODY,), self._message) for _ in said]


def _seen_off(monkeypatch: pytest.MonkeyPatch, message: Any, at: list[float]) -> tuple[float, int]:
    """The seconds that it took, and the number of words that were heard."""
    others: Any = Others(message, at)
    heard: list[Word] = []
    monkeypatch.setattr(farewell, "time", SimpleNamespace(monotonic=others.monotonic))
    farewell.see_off(others, others, lambda word, now: heard.append(word))
    return others.now - 100.0, len(heard)


def test_it_stays_as_long_as_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    took_s, heard = _seen_off(monkeypatch, JOIN, [0.4, 1.6, 3.0])

    assert heard == 3 and 3.0 + farewell.QUIET_S <= took_s < 6.0


def test_it_does_not_stay_for_those_who_know_or_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Beat(node="b", incarnation="b")

    assert _seen_off(monkeypatch, lives, [0.4, 1.6, 3.0])[0] == farewell.QUIET_S
    assert _seen_off(monkeypatch, JOIN, [float(s) for s in range(99)])[0] == farewell.WITHIN_S
