"""What several unit tests need."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def streams_put_back() -> Iterator[None]:
    """Random numbers that a test draws are nobody else's: the streams stand where they stood."""
    from recoverrun.hooks import rng  # Not at the top: most tests here get along without torch.

    before = rng.read()
    yield
    rng.restore(before)
