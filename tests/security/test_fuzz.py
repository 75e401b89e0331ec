"""A sample of `make fuzz`: 20,000 damaged frames crash nothing, and a good peer is served."""

from pathlib import Path

import pytest

from tests.security import fuzz
from tests.security.arena import Arena, close_stations

pytestmark = pytest.mark.e2e

SEED = 2026


def test_18000_damaged_frames_crash_nothing() -> None:
    target = fuzz.straight(18_000, SEED)

    # Neither are all of them refused, nor is any job immortal.
    assert 2_000 < target.messages < 16_000
    assert target.jobs > 10


def test_2000_damaged_frames_over_the_network_delay_nobody(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    try:
        fuzz.over_the_network(2_000, SEED, arena)
    finally:
        close_stations()
        arena.close()
