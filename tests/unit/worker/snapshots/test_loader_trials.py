"""Loaders that another thread reads ahead are known."""

import threading

import pytest

from recoverrun.worker.snapshots.loader_trials import read_elsewhere
from tests.unit.loaders import LOADERS, OWN, Numbers, read_on

pytestmark = pytest.mark.usefixtures("streams_put_back")


def test_a_loader_that_a_thread_reads_ahead_is_named() -> None:
    one = read_on(LOADERS["shuffled"](Numbers(), OWN), 2)
    assert not read_elsewhere([one])
    thread = threading.Thread(target=next, args=(one,))
    thread.start()
    thread.join()

    assert read_elsewhere([one]) == "a DataLoader over a Numbers by RandomSampler"
