"""Code that runs as another rank ends its execution, and not this process."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Never

import pytest

from ft_collectives.communicators.errors import Superseded
from recoverrun.worker.errors import NotReplayable, Unwind
from recoverrun.worker.replay.containment import Containment, GivenUp

REGION, RANK = "train.py:9", 1


class Runtime:
    def __init__(self) -> None:
        self.own_modules = frozenset({__name__})
        self.spoiled = ""

    def spoil(self, reason: str) -> None:
        self.spoiled = self.spoiled or reason


@pytest.fixture
def containment() -> Iterator[Containment]:
    before = {n: signal.getsignal(n) for n in range(signal.SIGRTMIN, signal.SIGRTMAX)}
    runtime: Any = Runtime()
    yield Containment(runtime, pytest.fail)
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, signal.SIG_DFL)


def reason(containment: Containment, work: Callable[[], Any]) -> NotReplayable:
    with pytest.raises(NotReplayable) as caught:
        containment.serve(REGION, RANK, 0.0, work)
    return caught.value


class Samples:
    def __init__(self, end: Callable[[], Any]) -> None:
        self.end = end

    def __getitem__(self, row: int) -> Any:
        return self.end()


def _fail() -> Never:
    raise ValueError("record 61")


def test_data_that_are_known_to_be_wrong_are_not_handed_on(containment: Containment) -> None:
    def own_item() -> int:
        containment._script.spoil("the seeds of rank 1 are unknown")
        return 7

    assert str(reason(containment, own_item)) == "the seeds of rank 1 are unknown"
    assert containment.serve(REGION, RANK, 0.0, lambda: 7) == 7


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: sys.exit("damaged"), "raised SystemExit('damaged')"),
        (lambda: os._exit(7), "would end this process by os._exit"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "would end this process by os.kill"),
    ],
)
def test_what_ends_a_process_ends_the_execution_and_is_not_tried_again(
    containment: Containment, end: Callable[[], Any], words: str
) -> None:
    why = reason(containment, lambda: Samples(end)[61])

    assert isinstance(why, GivenUp)
    assert str(why).startswith(f"{REGION}: executed as rank 1, the script's code {words} at ")
    assert f"{__file__}:" in str(why)
    assert str(why).endswith(", for sample 61")


def test_an_interruption_that_code_raises_is_its_own(containment: Containment) -> None:
    def interrupt() -> Never:
        raise KeyboardInterrupt

    assert isinstance(reason(containment, interrupt), GivenUp)


def test_that_of_the_user_is_not(containment: Containment) -> None:
    def wait() -> None:
        thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
        thread.start()
        threading.Event().wait(20)

    with pytest.raises(KeyboardInterrupt):
        containment.serve(REGION, RANK, 0.0, wait)


def test_an_error_is_a_reason_and_may_be_met_again(containment: Containment) -> None:
    why = reason(containment, lambda: Samples(_fail)[61])

    assert not isinstance(why, GivenUp)
    assert "raised ValueError('record 61') at " in str(why)


def test_what_is_ours_passes(containment: Containment) -> None:
    def supersede() -> Never:
        raise Superseded(3)

    with pytest.raises(Superseded):
        containment.serve(REGION, RANK, 0.0, supersede)
    assert containment.serve(REGION, RANK, 0.0, lambda: 7) == 7


@pytest.mark.parametrize(
    ("limit_s", "patience_s"), [(0.0, 1800.0), (30.0, 0.0)], ids=["its own", "the others'"]
)
def test_a_wait_that_lasts_too_long_is_left(limit_s: float, patience_s: float) -> None:
    runtime: Any = Runtime()
    containment = Containment(runtime, pytest.fail, lambda: patience_s)
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            containment.timer.look()

    thread = threading.Thread(target=look)
    lock = threading.Lock()
    lock.acquire()
    thread.start()
    try:
        with pytest.raises(Unwind), containment.of(REGION, RANK, limit_s):
            lock.acquire(timeout=20)
    finally:
        over.set()
        thread.join(20)

    why = containment.failure()
    assert isinstance(why, GivenUp)
    assert "had not ended after 0 s; it was at " in str(why)
    assert f"{__file__}:" in str(why)
