"""Copies of journals: a launcher's desk and a reader, over a real connection."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recoverrun.config.option_values import Endpoint
from recoverrun.config.options import Options
from recoverrun.config.run_config import parse_options
from recoverrun.launcher.network.addresses import free_port
from recoverrun.launcher.network.connections import Connections
from recoverrun.launcher.network.journal_desk import JournalDesk
from recoverrun.launcher.network.key_lookup import Keyring
from recoverrun.launcher.network.remote_journals import RemoteJournals
from recoverrun.launcher.output.run_folder import RunFolder
from recoverrun.reports.hang_stacks import heading
from rendezvous.transport.station import Station

PATIENCE_S = 30.0
JOURNAL = "events.a.jsonl"


class Launcher:
    """A launcher that does nothing but answer readers, in a thread."""

    def __init__(self, place: Path, rank: int = 0) -> None:
        self.run_dir = place / "run"
        self._station = Station()
        self.endpoint = Endpoint(host="127.0.0.1", port=free_port())
        options = Options(
            command=("train.py",), nnodes="2", rdzv_endpoint=str(self.endpoint), node_rank=rank
        )
        self._connections = Connections(self._station, parse_options(options, {}))
        self._connections.open(time.monotonic())
        folder = RunFolder(self.run_dir, "train", "stamp")
        self._desk = JournalDesk(self._station, folder, self._connections)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def write(self, name: str, data: bytes) -> None:
        path = self.run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def end(self, last: bytes) -> None:
        """End as a launcher does: its last records are written while nobody is answered."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        self.write(JOURNAL, last)
        self._desk.close(lambda: True, time.monotonic())
        self._connections.close()
        self._station.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            ready = self._station.wait(0.05)
            now = time.monotonic()
            for word in self._connections.read(ready, now):
                assert self._desk.hear(word.sender, word.message, now)
            self._desk.answer(ready)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Launcher, RemoteJournals]]:
    """A launcher, and a reader that has met it."""
    launcher = Launcher(tmp_path)
    launcher.write(JOURNAL, b"begin ")
    copies = tmp_path / "copies"
    copies.mkdir()
    remote = RemoteJournals([launcher.endpoint], Keyring(), copies)
    try:
        remote.fetch()
        yield launcher, remote
    finally:
        remote.close()
        launcher.end(b"")


def test_a_reader_is_told_the_end_of_a_launcher_that_it_never_asked_for(
    job: tuple[Launcher, RemoteJournals],
) -> None:
    launcher, remote = job

    launcher.end(b"end")
    until = time.monotonic() + PATIENCE_S
    while not remote.over:
        assert time.monotonic() < until
        remote.fetch()

    assert (remote.directory / JOURNAL).read_bytes() == b"begin end"


def test_stacks_are_fetched_once_they_are_wanted(job: tuple[Launcher, RemoteJournals]) -> None:
    launcher, remote = job
    stacks = heading("train/stamp").encode() + b"File"
    launcher.write("hangs/2/rank1.stack", stacks)

    remote.fetch()
    assert not (remote.directory / "hangs").exists()

    remote.stacks = True
    remote.fetch()
    assert (remote.directory / "hangs" / "2" / "rank1.stack").read_bytes() == stacks


def test_a_launcher_is_found_by_the_port_of_an_endpoint_where_nobody_listens(
    tmp_path: Path,
) -> None:
    launcher = Launcher(tmp_path, rank=1)
    launcher.write(JOURNAL, b"begin")
    remote = RemoteJournals([launcher.endpoint], Keyring(), tmp_path)
    try:
        remote.fetch()
    finally:
        remote.close()
        launcher.end(b"")

    assert (tmp_path / JOURNAL).read_bytes() == b"begin"
