"""One server of torchrun for the session, one driver for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity.driver import Driver, Torchrun


@pytest.fixture(scope="session")
def torchrun() -> Iterator[Torchrun]:
    server = Torchrun()
    yield server
    server.close()


@pytest.fixture
def driver(tmp_path: Path, torchrun: Torchrun) -> Iterator[Driver]:
    driver = Driver(tmp_path, torchrun)
    yield driver
    driver.end()
