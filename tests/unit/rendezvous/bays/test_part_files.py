"""Files in a directory are read again bit for bit, or found out to be damaged."""

import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from rendezvous.bays import memory, part_files
from rendezvous.bays.part_files import DamagedFile
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import PAGE, PART, BayHeader
from rendezvous.snapshots.identity import SnapshotId

BEGUN = SnapshotId(0, 41)


@pytest.fixture
def bays() -> Iterator[dict[int, int]]:
    """Of two ranks."""
    made = {rank: _bay(rank) for rank in range(2)}
    yield made
    for fd in made.values():
        os.close(fd)


def _content(rank: int) -> bytes:
    return bytes([rank, 1, 2]) * (PART // 2)


def _bay(rank: int) -> int:
    content = _content(rank)
    header = BayHeader(
        rank=rank, world=2, id=SnapshotId(3, 41), pieces=len(content) - 30, table=10, image=20,
        notes_sum=crc32(content[-30:]),
    )  # fmt: skip
    size = bay_header.bay_bytes(len(content) + PAGE)
    fd = memory.make(size)
    os.pwrite(fd, content, bay_header.content_begin(size))
    places = [bay_header.part(index, len(content)) for index in range(2)]
    sums = [crc32(content[begin:end]) for begin, end in places]
    os.pwrite(fd, bay_header.pack_sums(sums, header.id), PAGE)
    os.pwrite(fd, header.pack(), 0)
    return fd


def _written(directory: Path, bays: dict[int, int], step: int = 41, start: int = 7) -> Path:
    told = part_files.manifest(script="x.py", arguments="a", world=2, start=start, step=step)
    folder = part_files.folder_of(str(directory), start, step)
    part_files.write(folder, bays, told)
    return Path(folder)


def test_a_snapshot_comes_back_as_one_of_the_run_that_begins(
    tmp_path: Path, bays: dict[int, int]
) -> None:
    folder = _written(tmp_path, bays)
    [found] = part_files.found(tmp_path)
    fd = part_files.load(part_files.part_path(folder, 1), BEGUN)
    header, size = memory.header_of(fd), os.fstat(fd).st_size
    assert header is not None
    sums = memory.sums_of(fd, header)
    content = os.pread(fd, header.content, bay_header.content_begin(size))
    os.close(fd)

    assert (found.is_whole, found.step, found.world, found.script) == (True, 41, 2, "x.py")
    assert found.parts == dict.fromkeys(range(2), size)
    assert (header.id, header.rank, sums is not None) == (BEGUN, 1, True)
    assert content == _content(1)


def test_files_are_nobody_elses(tmp_path: Path, bays: dict[int, int]) -> None:
    folder = _written(tmp_path / "kept", bays)

    assert folder.stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o777 for one in folder.iterdir()} == {0o600}


def test_half_of_the_ranks_is_no_whole_snapshot(tmp_path: Path, bays: dict[int, int]) -> None:
    _written(tmp_path, {0: bays[0]})

    [found] = part_files.found(tmp_path)

    assert not found.is_whole


@pytest.mark.parametrize("at", [0, 20, PAGE, 2 * PAGE + 5, PART])
def test_a_flipped_bit_is_found(tmp_path: Path, bays: dict[int, int], at: int) -> None:
    path = part_files.part_path(_written(tmp_path, bays), 0)
    with Path(path).open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))

    with pytest.raises(DamagedFile, match="is damaged: "):
        part_files.load(path, BEGUN)


def test_a_file_that_was_cut_off_is_no_part(tmp_path: Path, bays: dict[int, int]) -> None:
    path = part_files.part_path(_written(tmp_path, bays), 0)
    os.truncate(path, PART)

    [found] = part_files.found(tmp_path)

    assert found.parts.keys() == {1}
    with pytest.raises(DamagedFile, match="has no header"):
        part_files.load(path, BEGUN)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "script": "x", "arguments": "", "world": 2}']
)
def test_a_folder_with_another_manifest_is_none_of_ours(
    tmp_path: Path, bays: dict[int, int], text: str
) -> None:
    (_written(tmp_path, bays) / part_files.MANIFEST).write_text(text)

    assert part_files.found(tmp_path) == []


@pytest.mark.parametrize("world", [-1, 0, 10**15])
def test_no_snapshot_of_a_damaged_number_of_ranks_is_whole(
    tmp_path: Path, bays: dict[int, int], world: int
) -> None:
    path = _written(tmp_path, bays) / part_files.MANIFEST
    path.write_text(path.read_text().replace('"world": 2', f'"world": {world}'))

    [found] = part_files.found(tmp_path)

    assert not found.is_whole


def test_what_ranks_wrote_before_is_removed_and_nothing_else(
    tmp_path: Path, bays: dict[int, int]
) -> None:
    oldest = _written(tmp_path, bays, start=5)
    of_others = _written(tmp_path, bays, start=6)
    kept = _written(tmp_path, bays, start=7)
    (tmp_path / "notes.txt").touch()
    for rank in (0, 1):
        part_files.drop_before(str(tmp_path), (6, 41), [rank])
    part_files.drop_before(str(tmp_path), (7, 0), [0])

    assert not oldest.exists()
    assert sorted(one.name for one in of_others.iterdir()) == ["manifest.json", "rank-000001.part"]
    assert len(list(kept.iterdir())) == 3
    assert (tmp_path / "notes.txt").exists()


def test_a_run_that_began_anew_is_newer_than_one_with_more_steps(
    tmp_path: Path, bays: dict[int, int]
) -> None:
    for start, step in ((5, 900), (6, 5), (7, 41), (7, 46), (1_000_000, 1)):
        _written(tmp_path, bays, step, start)

    assert [(one.start, one.step) for one in part_files.found(tmp_path)] == [
        (1_000_000, 1), (7, 46), (7, 41), (6, 5), (5, 900),
    ]  # fmt: skip
    assert part_files.starts(tmp_path) == 1_000_000


def test_a_start_counts_of_which_nothing_can_be_had(tmp_path: Path) -> None:
    Path(part_files.folder_of(str(tmp_path), 9, 5)).mkdir()

    assert (part_files.found(tmp_path), part_files.starts(tmp_path)) == ([], 9)


def test_no_directory_is_an_empty_one(tmp_path: Path) -> None:
    assert part_files.found(tmp_path / "none") == []
    assert part_files.starts(tmp_path / "none") == 0


def test_a_snapshot_that_is_gone_is_not_written(tmp_path: Path, bays: dict[int, int]) -> None:
    memory.take_header(bays[0])

    with pytest.raises(OSError, match="is gone"):
        _written(tmp_path, bays)
    assert not any(one.suffix == ".part" for one in tmp_path.rglob("*"))
