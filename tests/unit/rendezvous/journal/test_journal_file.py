"""Each line is one write, and a disk that takes none costs nothing but the lines."""

import errno
import os
import stat
from pathlib import Path

import pytest

from rendezvous.journal import journal_file
from rendezvous.journal.journal_file import RESERVE_BYTES, JournalFile
from rendezvous.journal.lines import Lines, Missing
from rendezvous.journal.reader import read_run
from rendezvous.protocol.records import Record

END = Record("run.end", "over", {"exit_code": 0, "root_rank": -1})
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _note(rank: int) -> Record:
    return Record("notice.give", "words", {"rank": rank})


class Book:
    """A journal file and the lines for it."""

    def __init__(self, path: Path) -> None:
        self.lines = Lines("n1", 100.0)
        self.file = JournalFile(path, self.lines)

    def write(self, *records: Record) -> None:
        for record in records:
            self.file.write(self.lines.line(record, mono=100.0, wall=1.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.n1.jsonl"


def _events(path: Path) -> list[tuple[str, int]]:
    log = read_run(path.parent)
    assert not log.unreadable
    return [(entry.event, entry.integer("records", 0)) for entry in log.entries]


def _full(_fd: int, _data: bytes) -> int:
    raise FULL


def _no_more(_fd: int, _offset: int, _count: int) -> OSError | None:
    return FULL


def test_a_full_disk_is_counted_and_told_when_there_is_room_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(path)
    book.write(_note(0))

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", _full)
        book.write(_note(1), _note(2))
        assert book.file.trouble == "No space left on device"
    book.write(_note(3))

    assert book.file.trouble == ""
    assert _events(path) == [("notice.give", 0), ("journal.drop", 2), ("notice.give", 0)]
    assert [(gap.after, gap.before) for gap in read_run(path.parent).gaps] == [(0, 3)]


def test_one_missing_line_is_a_gap_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(path)
    book.write(_note(0))

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", _full)
        book.write(_note(1))
    book.write(_note(2))

    assert [(gap.after, gap.before) for gap in read_run(path.parent).gaps] == [(0, 2)]


def test_a_reserve_tells_at_once_and_takes_how_the_run_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(path)
    book.write(_note(0))
    monkeypatch.setattr(journal_file, "_allocate", _no_more)

    while not book.file.trouble:  # until what is left is for essential lines
        book.write(_note(1))
    at_once = _events(path)
    book.write(_note(2), _note(3), END)

    assert at_once[-1] == ("journal.drop", 1)
    assert _events(path)[len(at_once) :] == [("journal.drop", 2), ("run.end", 0)]
    assert path.stat().st_size <= RESERVE_BYTES
    assert book.file.trouble == "No space left on device"


def test_a_disk_is_tried_again_without_a_line_to_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(path)
    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", _full)
        book.write(_note(0))
        book.file.retry()
        assert book.file.trouble

    book.file.retry()

    assert book.file.trouble == ""
    assert _events(path) == [("journal.drop", 1)]


def test_a_file_system_without_reserves_is_written_to_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = OSError(errno.EOPNOTSUPP, "not supported")
    monkeypatch.setattr(journal_file, "_allocate", lambda *_: unknown)
    book = Book(path)

    book.write(_note(0), END)

    assert _events(path) == [("notice.give", 0), ("run.end", 0)]


def test_a_reserve_is_seen_by_nobody_and_given_back(path: Path) -> None:
    book = Book(path)
    book.write(_note(0))
    size, kept = path.stat().st_size, path.stat().st_blocks

    book.file.close()

    assert path.read_bytes().count(b"\n") == 1
    assert path.stat().st_size == size
    assert path.stat().st_blocks <= kept


def test_lines_that_nobody_tried_to_write_are_told_in_their_place(path: Path) -> None:
    book = Book(path)
    book.write(_note(0))
    skipped = Missing.of(book.lines.line(_note(1), mono=101.0, wall=2.0))

    book.file.skip(skipped, "it stalled")
    book.write(_note(2))

    assert _events(path) == [("notice.give", 0), ("journal.drop", 1), ("notice.give", 0)]
    assert read_run(path.parent).entries[1].reason.endswith("it stalled")
    assert book.file.trouble == ""


def test_a_line_that_the_disk_cut_does_not_spoil_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(path)
    real = os.write

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", lambda fd, data: real(fd, data[:20]))
        book.write(_note(0))
    book.write(_note(1))

    log = read_run(path.parent)
    assert [entry.event for entry in log.entries] == ["journal.drop", "notice.give"]
    assert [place.why for place in log.unreadable][:1] == ["not JSON"]


def test_a_successor_appends_after_the_cut_line_of_a_killed_launcher(path: Path) -> None:
    Book(path).write(_note(0))
    path.write_bytes(path.read_bytes() + b'{"v":1,"ts":2')

    Book(path).write(_note(1))

    log = read_run(path.parent)
    assert [entry.integer("rank") for entry in log.entries] == [0, 1]
    assert [(place.line, place.why) for place in log.unreadable] == [(2, "not JSON")]
    assert log.gaps == ()


def test_a_journal_is_no_link_and_no_fifo(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="symbolic links"):
        Book(tmp_path / "link")
    with pytest.raises(OSError, match="regular"):
        Book(tmp_path / "fifo")


def test_only_losses_and_the_end_are_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(journal_file.os, "fsync", synced.append)
    book = Book(path)

    book.write(_note(0), END)

    assert len(synced) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_somebody_removes_is_missed_by_the_next_look(path: Path) -> None:
    book = Book(path)
    book.write(_note(0))
    assert not book.file.removed

    path.unlink()
    book.file.retry()

    assert book.file.removed and not book.file.trouble


def test_a_line_into_a_removed_file_tells_of_that(path: Path) -> None:
    book = Book(path)
    path.unlink()

    book.write(_note(0))

    assert book.file.removed
