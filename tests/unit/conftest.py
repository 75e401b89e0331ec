"""Fixtures of several unit tests."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def streams_put_back() -> Iterator[None]:
    """Random numbers that a test draws are nobody else's: the streams stand where they stood."""
    from recoverrun.worker.rng.streams import read_streams, restore_streams

    before = read_streams()
    yield
    restore_streams(before)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives no thread, as at the limit of a container's processes."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.fixture
def signals_put_back() -> Iterator[None]:
    """Whoever executes for others takes a signal that nobody uses, and there are not so many."""
    before = {
        number: signal.getsignal(number) for number in range(signal.SIGRTMIN, signal.SIGRTMAX)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def exchanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Survivors of one `survivors.Team` tell each other, in the place of ranks."""

    def gather(fabric: Any, channel: Any, generation: int, mine: Any) -> dict[int, Any]:
        told: dict[int, Any] = channel.exchange.all(channel.env.rank, mine)
        return told

    for module in ("make_up.make_up", "make_up.microbatch_maker", "make_up.audits"):
        monkeypatch.setattr(f"recoverrun.worker.{module}.gather", gather)
