"""Threads of the script that ask for data while its main thread executes for another rank."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from queue import Queue
from typing import Any

import pytest

from recoverrun.worker.tracking.busy_threads import busy_threads
from recoverrun.worker.tracking.mode import ExecutionMode

WITHIN_S = 30


@pytest.fixture
def pump() -> Iterator[tuple[threading.Thread, "Queue[Callable[[], Any]]", "Queue[Any]"]]:
    """A thread of the script's own; it does what it finds in the first queue."""
    asked: Queue[Callable[[], Any] | None] = Queue()
    answers: Queue[Any] = Queue()

    def work() -> None:
        while (one := asked.get()) is not None:
            answers.put(one())

    thread = threading.Thread(target=work)
    thread.start()
    asked.put(lambda: "begun")
    assert answers.get(timeout=WITHIN_S) == "begun"
    yield thread, asked, answers  # type: ignore[misc]
    asked.put(None)
    thread.join(WITHIN_S)


def test_a_thread_in_code_of_the_script_is_busy_and_one_of_an_idle_pool_is_not(pump: Any) -> None:
    thread, _, _ = pump
    with ThreadPoolExecutor(1) as executor, ThreadPool(1) as pool:
        idle = {executor.submit(threading.get_ident).result(), pool.apply(threading.get_ident)}
        executor.submit(int).result()
        found = busy_threads()

    assert thread.ident in found
    assert threading.get_ident() not in found
    assert not idle & found


def test_a_busy_thread_acts_for_nobody_and_what_the_execution_begins_acts_along(pump: Any) -> None:
    _, asked, answers = pump
    mode = ExecutionMode()

    def acting() -> int | None:
        return mode.acting_here

    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        with mode.as_rank(2):
            asked.put(acting)
            own = answers.get(timeout=WITHIN_S)
            along = [acting(), executor.submit(acting).result()]
            with ThreadPoolExecutor(1) as begun:
                along.append(begun.submit(acting).result())
    asked.put(acting)

    assert own is None
    assert along == [2, 2, 2]
    assert (acting(), answers.get(timeout=WITHIN_S)) == (None, None)
