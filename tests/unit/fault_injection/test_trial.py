"""A signal ends a trial wherever Python is as it comes."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from recoverrun.fault_injection.trial import Stopped, launch, stoppable
from recoverrun.launcher.node.signals import STOPPERS

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Waiting:
    """A launcher that says one line, and lives until it is told to leave."""

    pid = -1

    def __init__(self) -> None:
        read, self._write = os.pipe()
        os.write(self._write, b"begun\n")
        self.stdout: IO[bytes] | None = os.fdopen(read, "rb")
        self.returncode: int | None = None
        self.sent: list[int] = []

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        assert self.returncode is not None, "told to leave before"
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> object:
        return self.wait(timeout)

    def send_signal(self, sig: int) -> None:
        self.sent.append(sig)
        self.returncode = -sig
        os.close(self._write)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Finalized:
    """Its end is when a signal comes."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def in_a_finalizer(number: int) -> None:
    Finalized(number)


def as_it_is(number: int) -> None:
    signal.raise_signal(number)


def within_who_goes_on_after_errors(number: int) -> None:
    try:
        signal.raise_signal(number)
    except Exception:  # as scripts and screens do that protect themselves
        return


WAYS = [in_a_finalizer, as_it_is, within_who_goes_on_after_errors]


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    """Whoever runs the tests may ignore some of these signals, as `nohup` does."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPERS}
    yield
    assert {number: signal.getsignal(number) for number in STOPPERS} == dict.fromkeys(
        STOPPERS, signal.SIG_DFL
    )
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", sorted(STOPPERS))
def test_a_signal_ends_a_trial_wherever_python_is(
    number: signal.Signals, way: Callable[[int], None], tmp_path: Path
) -> None:
    process = Waiting()

    def start(command: Sequence[str], env: Mapping[str, str]) -> Waiting:
        return process

    with pytest.raises(Stopped) as stopped:
        launch(["x.py"], run_dir=tmp_path, on_line=lambda line: way(number), start=start)

    assert stopped.value.exit_code == 128 + number
    assert process.sent == [number] and process.stdout is not None and process.stdout.closed


@pytest.mark.parametrize("way", WAYS)
def test_a_signal_between_trials_is_raised_at_the_end_of_the_block_at_the_latest(
    way: Callable[[int], None],
) -> None:
    with pytest.raises(Stopped, match="SIGQUIT"), stoppable():
        way(signal.SIGQUIT)


def test_a_block_without_a_signal_leaves_nothing_behind() -> None:
    before = os.listdir("/proc/self/fd")

    with stoppable() as stop:
        stop.look()

    assert len(os.listdir("/proc/self/fd")) == len(before)
