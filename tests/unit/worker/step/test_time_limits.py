"""An execution ends in time, or the process that sits in it does."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from types import FrameType

import pytest
from torch.distributed import HashStore

from ft_collectives.communicators.c10d import DistStoreError
from recoverrun.worker.replay import script_locations
from recoverrun.worker.replay.shard_mates import APART_S
from recoverrun.worker.step.stack_dump import COMMUNICATION
from recoverrun.worker.step.time_limits import (
    GRACE_S,
    LEAST_S,
    MATES_S,
    ExecutionTimer,
    limit_s,
    next_step,
)


@pytest.mark.parametrize(("longest_s", "expected"), [(0.01, LEAST_S), (1.5, LEAST_S), (6.0, 120.0)])
def test_the_limit_is_a_multiple_of_the_longest_microbatch(
    longest_s: float, expected: float
) -> None:
    assert limit_s(longest_s) == expected


@pytest.mark.parametrize(
    ("over_s", "interruptible", "for_mates", "expected"),
    [
        (-1.0, True, False, "wait"),
        (-1.0, False, False, "wait"),
        (1.0, True, False, "interrupt"),
        (1.0, False, False, "let go"),
        (0.5 + GRACE_S, True, False, "let go"),
        (0.5 + GRACE_S, True, True, "interrupt"),
        (0.5 + GRACE_S, False, True, "wait"),
        (0.5 + MATES_S, True, True, "interrupt"),
        (0.5 + MATES_S, False, True, "let go"),
        (0.5 + MATES_S + GRACE_S, True, True, "let go"),
    ],
)
def test_it_is_interrupted_first_and_let_go_where_that_does_not_help(
    over_s: float, interruptible: bool, for_mates: bool, expected: str
) -> None:
    assert next_step(over_s, interruptible=interruptible, for_mates=for_mates) == expected


def test_a_mate_that_others_wait_for_has_the_time_to_tell_why_it_leaves() -> None:
    """It is interrupted, asks where the others are, and ends; they began that much earlier."""
    assert MATES_S >= GRACE_S + APART_S


class Left(BaseException):
    pass


def _leave(frame: FrameType | None, limit_s: float) -> None:
    raise Left(script_locations.of_frame(frame, (__name__,)))


@contextmanager
def _looked_after(timer: ExecutionTimer, go: "SimpleQueue[None] | None" = None) -> Iterator[None]:
    """A control thread, which looks from the beginning, or once it is told to `go`."""
    over = threading.Event()

    def look() -> None:
        if go is not None:
            go.get(timeout=20)
        while not over.wait(0.01):
            timer.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


@pytest.fixture
def timer() -> Iterator[ExecutionTimer]:
    before = {n: signal.getsignal(n) for n in range(signal.SIGRTMIN, signal.SIGRTMAX)}
    yield ExecutionTimer(lambda thread, limit_s: None)
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, signal.SIG_DFL)


def test_a_wait_for_a_lock_is_left(timer: ExecutionTimer) -> None:
    lock = threading.Lock()
    lock.acquire()

    with _looked_after(timer), pytest.raises(Left, match=r" at .*test_time_limits\.py:\d+$"):
        with timer.within(0.0, _leave):
            lock.acquire(timeout=20)


def test_what_is_over_is_not_interrupted(timer: ExecutionTimer) -> None:
    let_go: list[int] = []
    timer._let_go = lambda thread, limit_s: let_go.append(thread)
    with timer.within(0.0, _leave):
        ...

    timer.look()

    assert let_go == []


def test_in_a_backward_it_is_let_go(timer: ExecutionTimer) -> None:
    gone = threading.Event()
    let_go: list[tuple[int, float]] = []

    def note(thread: int, limit_s: float) -> None:
        let_go.append((thread, limit_s))
        gone.set()

    timer._let_go = note
    with _looked_after(timer), timer.within(0.0, _leave):
        timer.too_late_to_interrupt()
        assert gone.wait(20)

    assert let_go[0] == (threading.get_ident(), 0.0)


def test_who_waits_in_torchs_communication_is_not_let_go_before_its_mates(
    timer: ExecutionTimer,
) -> None:
    let_go: list[int] = []
    timer._let_go = lambda thread, limit_s: let_go.append(thread)
    text = "go(None)\nstore.wait(['never'], limit)"
    waiting = compile(text, f"{COMMUNICATION}/waiting.py", "exec")
    go: SimpleQueue[None] = SimpleQueue()  # its calls are no frames of Python's
    names = {"go": go.put, "store": HashStore(), "limit": timedelta(seconds=0.5)}

    with timer.within(0.0, _leave):
        timer.too_late_to_interrupt()
        with _looked_after(timer, go), pytest.raises(DistStoreError):
            exec(waiting, names)

    assert let_go == []


def test_another_thread_than_the_main_one_is_let_go(timer: ExecutionTimer) -> None:
    gone = threading.Event()
    timer._let_go = lambda thread, limit_s: gone.set()

    def execute() -> None:
        with timer.within(0.0, _leave):
            assert gone.wait(20)

    thread = threading.Thread(target=execute)
    with _looked_after(timer):
        thread.start()
        thread.join(20)

    assert gone.is_set()


def test_a_forked_child_is_not_watched(timer: ExecutionTimer) -> None:
    child = os.fork()
    if not child:
        with timer.within(0.0, _leave):
            timer.look()
        os._exit(5)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 5


def test_the_sample_is_named_where_a_data_set_was_asked_for_one() -> None:
    class Samples:
        def __getitem__(self, row: int) -> int:
            return decoded(row)

    def decoded(row: int) -> int:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged") as caught:
        Samples()[61]

    where = script_locations.of_error(caught.value, (__name__,))
    assert where.startswith(f" at {__file__}:")
    assert where.endswith(", for sample 61")
    assert script_locations.of_error(caught.value, ("elsewhere",)) == ""
