"""Each record is one line, and a disk that takes none costs nothing but the line."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from rendezvous.journal import writer
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.effects import Record


def _note(rank: int, reason: str = "words") -> Record:
    return Record("notice.give", reason, {"rank": rank})


def _journal(run_dir: Path, node: str = "n1") -> Journal:
    return Journal(journal_path(run_dir, node), node, 100.0)


def test_a_record_is_one_line_with_the_times_it_was_given(tmp_path: Path) -> None:
    book = _journal(tmp_path)

    book.append(_note(3), mono=101.5, wall=1e9)

    path = tmp_path / "events.n1.jsonl"
    line = json.loads(path.read_text())
    assert path.read_bytes().endswith(b"\n")
    assert line == {
        "v": 1, "ts": 1e9, "mono": 1.5, "seq": 0, "node": "n1", "ev": "notice.give",
        "reason": "words", "rank": 3,
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (Record("no.such", "", {}), "no such journal event"),
        (Record("run.end", "", {"exit_code": 0}), "root_rank"),
        (Record("notice.give", "", {"rank": 0, "seq": 1}), "belong to the line"),
    ],
)
def test_a_record_against_the_table_is_a_programming_error(
    tmp_path: Path, record: Record, words: str
) -> None:
    book = _journal(tmp_path)

    with pytest.raises(AssertionError, match=words):
        book.append(record, mono=0.0, wall=0.0)


def test_a_full_disk_is_counted_and_told_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = _journal(tmp_path)
    book.append(_note(0), mono=100.0, wall=1.0)
    real = os.write

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(writer.os, "write", full)
    for rank in (1, 2):
        book.append(_note(rank), mono=100.0, wall=2.0)
    monkeypatch.setattr(writer.os, "write", real)
    book.append(_note(3), mono=100.0, wall=3.0)

    log = read_run(tmp_path)
    assert [entry.event for entry in log.entries] == ["notice.give", "journal.drop", "notice.give"]
    assert log.entries[1].integer("records") == 2
    assert [(gap.after, gap.before) for gap in log.gaps] == [(0, 3)]


def test_a_line_that_the_disk_cut_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = _journal(tmp_path)
    real = os.write

    monkeypatch.setattr(writer.os, "write", lambda fd, data: real(fd, data[:20]))
    book.append(_note(0), mono=100.0, wall=1.0)
    monkeypatch.setattr(writer.os, "write", real)
    book.append(_note(1), mono=100.0, wall=2.0)

    log = read_run(tmp_path)
    assert [entry.event for entry in log.entries] == ["journal.drop", "notice.give"]
    assert [place.why for place in log.unreadable] == ["not JSON"]


def test_a_successor_appends_after_the_cut_line_of_a_killed_launcher(tmp_path: Path) -> None:
    _journal(tmp_path).append(_note(0), mono=100.0, wall=1.0)
    path = journal_path(tmp_path, "n1")
    path.write_bytes(path.read_bytes() + b'{"v":1,"ts":2')

    _journal(tmp_path).append(_note(1), mono=100.0, wall=3.0)

    log = read_run(tmp_path)
    assert [entry.integer("rank") for entry in log.entries] == [0, 1]
    assert [(place.line, place.why) for place in log.unreadable] == [(2, "not JSON")]
    assert log.gaps == ()


def test_a_journal_is_no_link_and_no_fifo(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="symbolic links"):
        Journal(tmp_path / "link", "n1", 0.0)
    with pytest.raises(OSError, match="regular"):
        Journal(tmp_path / "fifo", "n1", 0.0)


def test_text_is_clipped_and_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    book = _journal(tmp_path)

    record = Record("fault.hint", "x" * 100_000, {"rank": 0, "ms": float("nan"), "bad": "\udcff"})
    book.append(record, mono=100.0, wall=1.0)

    (entry,) = read_run(tmp_path).entries
    assert len(entry.reason) == writer.TEXT_LIMIT
    assert entry.fields["ms"] is None


def test_only_losses_and_the_end_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(writer.os, "fsync", synced.append)
    book = _journal(tmp_path)

    book.append(_note(0), mono=100.0, wall=1.0)
    book.append(Record("run.end", "", {"exit_code": 0, "root_rank": -1}), mono=100.0, wall=2.0)

    assert len(synced) == 1


def test_appending_to_a_closed_journal_raises_nothing(tmp_path: Path) -> None:
    book = _journal(tmp_path)
    book.close()
    book.close()

    book.append(_note(0), mono=100.0, wall=1.0)
