"""The script finds its signal handlers as it has set them; ours are left alone."""

import signal
from collections.abc import Iterator

import pytest

from recoverrun.worker import own_files
from recoverrun.worker.boot.signal_handlers import hold_exceptions
from recoverrun.worker.step.held_exceptions import HELD, Handler

NUMBERS = (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM)


class Late(Exception):
    pass


def _raise(*_: object) -> None:
    raise Late


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    monkeypatch.setattr(signal, "signal", signal.signal)
    monkeypatch.setattr(signal, "getsignal", signal.getsignal)
    original = signal.signal
    monkeypatch.setattr(HELD, "acting", HELD.acting)
    hold_exceptions(lambda: False)
    yield
    for number, handler in before.items():
        original(number, handler)


def test_what_a_handler_raises_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.signal(signal.SIGUSR1, _raise) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is _raise

    went_on = False
    with pytest.raises(Late), HELD:
        signal.raise_signal(signal.SIGUSR1)
        went_on = True

    assert went_on
    assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is _raise


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_a_job_is_not_held(number: signal.Signals) -> None:
    signal.signal(number, _raise)
    with pytest.raises(Late), HELD:
        signal.raise_signal(number)
        pytest.fail("it is raised")


def test_ours_are_set_and_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGUSR1, _raise)
    monkeypatch.setattr(own_files, "has", lambda path: True)

    assert isinstance(signal.getsignal(signal.SIGUSR1), Handler)
    signal.signal(signal.SIGUSR1, _raise)
    assert signal.getsignal(signal.SIGUSR1) is _raise
