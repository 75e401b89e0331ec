"""The bound of a run tells one that hangs from one that has no CPU."""

import os

import pytest

from tests.e2e.fair_time import Delays, FairTime, delays_below

WALL_S = 100


@pytest.mark.parametrize(
    ("waits", "had_s"),
    [
        ({1: 0.0, 2: 0.0}, 100.0),  # it hangs, whatever the load is
        ({1: 0.2, 2: 0.8}, 20.0),
        ({1: 1.0}, 5.0),
        ({}, 100.0),  # it has ended
    ],
)
def test_a_second_counts_but_for_what_a_thread_waited_for_a_cpu(
    waits: Delays, had_s: float
) -> None:
    now = 0.0
    time = FairTime(
        1, clock=lambda: now, delays=lambda _: {tid: share * now for tid, share in waits.items()}
    )

    for second in range(1, WALL_S + 1):
        now = float(second)
        time.seconds()

    assert time.seconds() == pytest.approx(had_s)


def test_a_thread_that_begins_later_counts_from_then_on() -> None:
    now, delays = 0.0, {1: 50.0}
    time = FairTime(1, clock=lambda: now, delays=lambda _: dict(delays))

    now, delays[2] = 1.0, 0.75

    assert time.seconds() == pytest.approx(0.25)


def test_threads_of_this_process_and_of_its_children_are_read() -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.read(read, 1)
        os._exit(0)
    try:
        found = delays_below(os.getpid())
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)

    assert {os.getpid(), child} <= found.keys()
    assert all(seconds >= 0 for seconds in found.values())
