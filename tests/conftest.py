"""What all tests need."""

import signal
from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.tiers"]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Let what tests start be interrupted, also where a shell that put pytest aside ignores it."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)
