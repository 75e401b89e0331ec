"""Fixtures and options of all tests."""

import gc
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.warm.launchers import LAUNCHERS

pytest_plugins = ["tests.tiers"]

ENDED_WITHIN_S = 5.0
"""A worker that was sent SIGTERM is gone by then."""


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Let what tests start be interrupted, also where a shell that put pytest aside ignores it."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


@pytest.fixture(scope="session", autouse=True)
def warm(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --warm launchers and workers are forks of one process that has torch."""
    with LAUNCHERS.forked(request.config.getoption("warm")):
        yield


@pytest.fixture(autouse=True)
def cold(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test with the mark looks at a process as a user starts it."""
    with LAUNCHERS.anew() if request.node.get_closest_marker("cold") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def no_forked_process_stays() -> Iterator[None]:
    """A loader's worker that outlives its test holds what it was forked with, pipes too.

    Whoever waits for the end of such a pipe then waits for ever. Loaders end their workers when
    nobody holds them, which in a circle of references is when Python looks for circles. Until 2.12
    torch does not wait for those that it has sent SIGTERM.
    """
    before = set(multiprocessing.active_children())
    yield
    if set(multiprocessing.active_children()) - before:
        gc.collect()
        for one in set(multiprocessing.active_children()) - before:
            one.join(ENDED_WITHIN_S)
        stayed = set(multiprocessing.active_children()) - before
        assert not stayed, f"the test has left {sorted(one.name for one in stayed)}"
