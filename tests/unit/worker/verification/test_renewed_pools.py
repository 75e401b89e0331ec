"""A pool of threads works in a forked child as it does in its parent."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from recoverrun.worker.verification.forked_child import ChildLate, run

BOUND_S = 20.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def doubled(number: int) -> int:
    return 2 * number


def in_child(pool: ThreadPoolExecutor) -> Any:
    return run(lambda: {"items": list(pool.map(doubled, range(5)))}, BOUND_S)["items"]


@pytest.mark.parametrize("used", [0, 1, 9])
def test_its_threads_begin_anew(pool: ThreadPoolExecutor, used: int) -> None:
    before = list(pool.map(doubled, range(used)))

    assert in_child(pool) == [0, 2, 4, 6, 8]
    assert list(pool.map(doubled, range(used))) == before, "its parent's is as it was"


def test_what_it_has_not_begun_is_done_there_and_what_it_is_at_is_not(
    pool: ThreadPoolExecutor,
) -> None:
    held, begun = threading.Event(), [threading.Event(), threading.Event()]

    def hold(number: int) -> int:
        begun[number].set()
        held.wait()
        return number

    at = [pool.submit(hold, number) for number in range(2)]
    for one in begun:
        one.wait()
    waits: Future[int] = pool.submit(doubled, 4)

    try:
        found = run(lambda: {"items": [pool.submit(doubled, 3).result(), waits.result()]}, BOUND_S)
        with pytest.raises(ChildLate):
            run(lambda: {"items": [at[0].result()]}, 0.5)
    finally:
        held.set()

    assert found["items"] == [6, 8]
    assert [one.result() for one in (*at, waits)] == [0, 1, 8]


def test_one_that_is_shut_down_stays_so() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(doubled, 1).result()

    found = run(lambda: {"items": list(pool.map(doubled, range(2)))}, BOUND_S)

    assert "cannot schedule new futures after shutdown" in found["failed"]
