"""A launcher whose private directory is cleared under it can be called again."""

import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from recoverrun.launcher.node.private_socket import LOOK_S, PrivateSocket
from recoverrun.launcher.output import run_dir
from recoverrun.launcher.output.run_dir import PrivateDir, make_private_dir
from rendezvous.protocol.messages import Hello, StoreCall
from rendezvous.protocol.records import Record
from rendezvous.transport.station import Station
from rendezvous.transport.worker_link import WorkerLink

PATIENCE_S = 60.0


class Launcher:
    """The part of a launcher that workers call, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.private = make_private_dir()
        self.station = Station()
        self.records: list[Record] = []
        self.socket = PrivateSocket(self.private, self.station, self.records.append)
        self.now = 0.0
        self.links: list[WorkerLink] = []

    def looks(self) -> None:
        self.now += LOOK_S
        self.socket.tick(self.now)

    def is_called(self, rank: int) -> bool:
        """True once a new worker of this rank is heard."""
        link = WorkerLink(f"ipc://{self.private.socket}", rank, 0)
        self.links.append(link)
        link.send(Hello(rank=rank, incarnation=0, pid=1, torch=""))
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            self.station.wait(0.05)
            while (incoming := self.socket.router.receive()) is not None:
                if incoming.sender.startswith(f"o{rank}.".encode()):
                    return True
        return False

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.station.close()
        self.private.remove()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("content_only", [False, True])
def test_who_calls_after_shared_memory_was_cleared_is_heard(
    launcher: Launcher, content_only: bool
) -> None:
    assert launcher.is_called(1)
    shutil.rmtree(launcher.private.path)
    if content_only:
        launcher.private.path.mkdir(mode=0o700)

    launcher.looks()

    assert launcher.is_called(2)
    (record,) = launcher.records
    assert "was removed by another program, and is made again" in record.reason
    launcher.looks()
    assert len(launcher.records) == 1


def test_the_new_directory_is_locked_as_the_one_before_was(launcher: Launcher) -> None:
    shutil.rmtree(launcher.private.path)
    launcher.looks()

    run_dir._remove_stale(launcher.private.path.parent)

    assert os.path.exists(launcher.private.socket)
    assert launcher.private.path.stat().st_mode & 0o777 == 0o700


def test_a_place_that_others_can_look_into_is_not_taken(launcher: Launcher) -> None:
    shutil.rmtree(launcher.private.path)
    launcher.private.path.mkdir(mode=0o755)

    launcher.looks()
    launcher.looks()

    assert os.listdir(launcher.private.path) == []
    (record,) = launcher.records
    assert "cannot be made again (its place is somebody else's now)" in record.reason


def test_a_link_in_its_place_is_not_followed(launcher: Launcher) -> None:
    shutil.rmtree(launcher.private.path)
    with tempfile.TemporaryDirectory() as elsewhere:
        launcher.private.path.symlink_to(elsewhere)
        try:
            with pytest.raises(OSError, match="."):
                PrivateDir(launcher.private.path, launcher.private.lock).restore()
            assert not list(Path(elsewhere).iterdir())
        finally:
            launcher.private.path.unlink()


def test_the_store_socket_of_a_thread_that_has_ended_is_closed_without_a_word(
    launcher: Launcher,
) -> None:
    link = WorkerLink(f"ipc://{launcher.private.socket}", 1, 0)
    launcher.links.append(link)
    asks = StoreCall(
        rank=1, serial=0, generation=0, op="get", keys=("k",), values=(), amount=0, timeout_s=0.1
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        thread = threading.Thread(target=link.call, args=(asks, -100.0))
        thread.start()
        thread.join()

    assert [str(one.message) for one in told] == []
