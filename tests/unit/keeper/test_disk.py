"""A keeper writes what it holds to a disk, and another one has it from there."""

import os
import select
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recoverrun.keeper.disk import Disk, Outcome
from rendezvous.bays import memory, packets, part_files
from rendezvous.bays.client import KeeperClient, SnapshotLost
from rendezvous.protocol.keeper_messages import (
    BayDropped,
    Dismiss,
    Load,
    SetAside,
    WriteOut,
    WrittenOut,
)
from rendezvous.protocol.snapshot_messages import Keep
from tests.unit.keepers import KeeperProcess, listening

pytestmark = pytest.mark.rest

MIB = 1 << 20


class Kept:
    """A keeper, and a rank that calls it."""

    def __init__(self, keeper: KeeperProcess, path: str) -> None:
        self.keeper = keeper
        self.client = KeeperClient(path, 0, 0, 1)

    def fill(self, step: int) -> bytes:
        bay = self.client.reserve(MIB, notes=4096)
        content = bytes([step, 7]) * (MIB // 2)
        bay.memory[:] = content
        bay.seal(0, step, b"table", b"image")
        return content

    def write(self, directory: Path, step: int, start: int, keep: int = 0) -> WrittenOut:
        told = part_files.manifest(script="x.py", arguments="", world=1, start=start, step=step)
        order = WriteOut(
            attempt=0, step=step, start=start, directory=str(directory), manifest=told,
            keep=(keep, 0),
        )  # fmt: skip
        packets.say(self.keeper.line, order)
        written = self.keeper.hear(WrittenOut)
        assert isinstance(written, WrittenOut)
        return written

    def read(self, step: int) -> bytes:
        kept = self.client.open(0, step)
        into = bytearray(MIB)
        kept.read(0, memoryview(into))
        kept.close()
        return bytes(into)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with listening(tmp_path) as (path, listener):
        keeper = KeeperProcess(listener, 1, linger_s=0.0)
        keeper.inherit({})
        keeper.holding()
        found = Kept(keeper, path)
        yield found
        found.client.close()
        keeper.close()


def _part(directory: Path, step: int, start: int) -> Path:
    folder = Path(part_files.folder_of(str(directory), start, step))
    return Path(part_files.part_path(folder, 0))


def test_what_is_written_is_had_again_under_another_name(kept: Kept, tmp_path: Path) -> None:
    content = kept.fill(5)
    kept.keeper.holding((0, 0, 5))

    written = kept.write(tmp_path / "kept", 5, 11)
    packets.say(
        kept.keeper.line, Load(path=str(_part(tmp_path / "kept", 5, 11)), rank=0, attempt=0, step=4)
    )
    again = kept.read(4)

    assert (written.step, written.start, written.failed) == (5, 11, "")
    assert written.nbytes > MIB
    assert again == content


def test_what_comes_from_a_disk_later_has_the_place_of_what_is_not_kept(
    kept: Kept, tmp_path: Path
) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    assert kept.write(tmp_path, 5, 11).failed == ""
    kept.fill(6)
    kept.keeper.holding((0, 0, 5), (0, 0, 6))
    packets.say(kept.keeper.line, Keep(order=(1, 0, (1, 5), (-1, -1)), unfit=((0, 6),)))

    packets.say(kept.keeper.line, Load(path=str(_part(tmp_path, 5, 11)), rank=0, attempt=1, step=5))
    dropped = kept.keeper.hear(BayDropped)
    kept.keeper.holding((0, 0, 5), (0, 1, 5))

    _, empty, _ = (memory.number_of(fd) for _, fd in kept.keeper.bays.values())
    assert dropped == BayDropped(bay=empty)


def test_what_is_not_here_is_not_written(kept: Kept, tmp_path: Path) -> None:
    words = "the snapshot of step 9 is not in the memory of this node any more"

    assert kept.write(tmp_path / "kept", 9, 11).failed == words
    assert not (tmp_path / "kept").exists()


def test_an_older_one_goes_when_that_is_said(kept: Kept, tmp_path: Path) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    for start, keep in ((11, 0), (12, 11), (13, 12)):
        assert kept.write(tmp_path / "kept", 5, start, keep).failed == ""

    assert [one.start for one in part_files.found(tmp_path / "kept")][:1] == [13]
    assert not _part(tmp_path / "kept", 5, 11).exists()
    assert _part(tmp_path / "kept", 5, 12).exists()


def test_a_disk_that_refuses_is_told_in_its_own_words(kept: Kept, tmp_path: Path) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    (tmp_path / "file").touch()

    assert kept.write(tmp_path / "file" / "kept", 5, 11).failed == "Not a directory"


def test_an_unfit_one_is_not_found_again_however_soon_the_job_is_over(
    kept: Kept, tmp_path: Path
) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    for start in (11, 12):
        assert kept.write(tmp_path, 5, start).failed == ""
    unfit, gone = _part(tmp_path, 5, 12), _part(tmp_path, 5, 10)

    packets.say(kept.keeper.line, SetAside(paths=(str(gone), str(unfit))))
    packets.say(kept.keeper.line, Dismiss())

    assert kept.keeper.ended()
    assert [one.start for one in part_files.found(tmp_path) if one.is_whole] == [11]
    assert unfit.with_name(f"{unfit.name}.unfit").exists()


@contextmanager
def _small(place: Path) -> Iterator[None]:
    """A file system of 256 KiB at `place`."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_disk_is_told_nothing_half_stands_there_and_what_is_there_stays(
    kept: Kept, tmp_path: Path
) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    with _small(tmp_path / "disk"):
        older = _part(tmp_path / "disk", 4, 10)
        older.parent.mkdir()
        older.touch()
        failed = kept.write(tmp_path / "disk", 5, 11, keep=11).failed
        there = sorted(one.name for one in (tmp_path / "disk").rglob("*.part*"))

    assert failed == "No space left on device"
    assert there == [older.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_read_only_is_told(kept: Kept, tmp_path: Path) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    with _small(tmp_path / "disk"):
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        failed = kept.write(tmp_path / "disk", 5, 11).failed

    assert failed == "Read-only file system"


def test_a_damaged_part_is_refused_and_set_aside(kept: Kept, tmp_path: Path) -> None:
    kept.fill(5)
    kept.keeper.holding((0, 0, 5))
    kept.write(tmp_path / "kept", 5, 11)
    path = _part(tmp_path / "kept", 5, 11)
    with path.open("r+b") as file:
        file.seek(MIB)
        file.write(b"x")

    packets.say(kept.keeper.line, Load(path=str(path), rank=0, attempt=0, step=4))

    with pytest.raises(SnapshotLost, match="is damaged: part 0 is not what was written"):
        kept.read(4)
    assert not path.exists()
    assert path.with_name(f"{path.name}.damaged").exists()


def test_tasks_are_done_in_order_and_what_follows_is_the_callers() -> None:
    disk = Disk()
    done: list[tuple[int, bool, bool]] = []
    here = threading.get_ident()
    over = threading.Event()

    def task(name: int) -> Outcome:
        there = threading.get_ident()
        return lambda: done.append((name, there != here, threading.get_ident() == here))

    for name in range(3):
        disk.ask(lambda name=name: task(name))
    disk.ask(lambda: over.set)
    while not over.is_set():
        assert select.select([disk.fd], [], [], 30.0)[0]
        for outcome in disk.take():
            outcome()

    assert done == [(name, True, True) for name in range(3)]
