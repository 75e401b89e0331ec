"""The journal: what the writer promises on a bad disk, what the reader makes of a bad file."""

import errno
import json
import os
import random
import stat
from pathlib import Path

import pytest

from rendezvous.journal import journal as journal_module
from rendezvous.journal.journal import (
    EVENTS,
    LINE_LIMIT,
    Journal,
    RunTail,
    journal_path,
    parse_line,
    read_run,
)
from rendezvous.protocol.effects import Record
from tests.unit import journals


def _note(rank: int, reason: str = "words") -> Record:
    return Record("notice.give", reason, {"rank": rank})


def _journal(run_dir: Path, node: str = "n1") -> Journal:
    return Journal(journal_path(run_dir, node), node, 100.0)


def test_a_record_is_one_line_with_the_times_it_was_given(tmp_path: Path) -> None:
    writer = _journal(tmp_path)

    writer.append(_note(3), mono=101.5, wall=1e9)

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
    writer = _journal(tmp_path)

    with pytest.raises(AssertionError, match=words):
        writer.append(record, mono=0.0, wall=0.0)


def test_a_full_disk_is_counted_and_told_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = _journal(tmp_path)
    writer.append(_note(0), mono=100.0, wall=1.0)
    real = os.write

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(journal_module.os, "write", full)
    for rank in (1, 2):
        writer.append(_note(rank), mono=100.0, wall=2.0)
    monkeypatch.setattr(journal_module.os, "write", real)
    writer.append(_note(3), mono=100.0, wall=3.0)

    log = read_run(tmp_path)
    assert [entry.event for entry in log.entries] == ["notice.give", "journal.drop", "notice.give"]
    assert log.entries[1].integer("records") == 2
    assert [(gap.after, gap.before) for gap in log.gaps] == [(0, 3)]


def test_a_line_that_the_disk_cut_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = _journal(tmp_path)
    real = os.write

    monkeypatch.setattr(journal_module.os, "write", lambda fd, data: real(fd, data[:20]))
    writer.append(_note(0), mono=100.0, wall=1.0)
    monkeypatch.setattr(journal_module.os, "write", real)
    writer.append(_note(1), mono=100.0, wall=2.0)

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
    writer = _journal(tmp_path)

    record = Record("fault.hint", "x" * 100_000, {"rank": 0, "ms": float("nan"), "bad": "\udcff"})
    writer.append(record, mono=100.0, wall=1.0)

    (entry,) = read_run(tmp_path).entries
    assert len(entry.reason) == journal_module.TEXT_LIMIT
    assert entry.fields["ms"] is None


def test_only_losses_and_the_end_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(journal_module.os, "fsync", synced.append)
    writer = _journal(tmp_path)

    writer.append(_note(0), mono=100.0, wall=1.0)
    writer.append(Record("run.end", "", {"exit_code": 0, "root_rank": -1}), mono=100.0, wall=2.0)

    assert len(synced) == 1


def test_appending_to_a_closed_journal_raises_nothing(tmp_path: Path) -> None:
    writer = _journal(tmp_path)
    writer.close()
    writer.close()

    writer.append(_note(0), mono=100.0, wall=1.0)


def test_nodes_are_merged_by_time_and_each_keeps_its_own_order(tmp_path: Path) -> None:
    one, two = _journal(tmp_path, "n1"), _journal(tmp_path, "n2")
    for wall, rank in ((1.0, 10), (4.0, 11), (3.3, 12)):  # its clock was set back a little
        one.append(_note(rank), mono=99.0 + wall, wall=wall)
    for wall, rank in ((2.0, 20), (5.0, 21)):
        two.append(_note(rank), mono=100.0 + wall, wall=wall)

    log = read_run(tmp_path)

    assert [entry.integer("rank") for entry in log.entries] == [10, 20, 11, 12, 21]


def test_a_line_beyond_the_limit_is_skipped_and_named(tmp_path: Path) -> None:
    writer = _journal(tmp_path)
    writer.append(_note(0), mono=100.0, wall=1.0)
    path = journal_path(tmp_path, "n1")
    with path.open("ab") as file:
        file.write(b'{"a":"' + b"x" * (2 * LINE_LIMIT) + b'"}\n')
    writer.append(_note(1), mono=100.0, wall=2.0)

    log = read_run(tmp_path)

    assert [entry.integer("rank") for entry in log.entries] == [0, 1]
    assert [(place.line, place.why[:11]) for place in log.unreadable] == [(2, "longer than")]


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 5000,
        b"\x00\xff\xfe",
        b"[]",
        b'{"v":1}',
        b'{"v":2,"ts":1,"seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":"late","seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":NaN,"seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":1e999,"seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":1,"seq":' + b"9" * 5000 + b',"ev":"run.end"}',
    ],
)
def test_a_line_that_is_no_record_is_refused_with_a_reason(line: bytes) -> None:
    entry, why = parse_line(line, "n1")

    assert entry is None
    assert why


def test_a_tail_reads_only_what_is_new_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    writer, tail = _journal(tmp_path), RunTail(tmp_path)
    writer.append(_note(0), mono=100.0, wall=1.0)
    path = journal_path(tmp_path, "n1")

    first = tail.poll()
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(whole[:30])
    second = tail.poll()
    with path.open("ab") as file:
        file.write(whole[30:])
    third = tail.poll()

    assert [len(part) for part in (first, second, third)] == [1, 0, 1]
    assert tail.places == 0


def test_unknown_events_are_kept_and_named(tmp_path: Path) -> None:
    path = tmp_path / "events.n1.jsonl"
    path.write_text('{"v":1,"ts":1,"seq":0,"ev":"of.tomorrow","x":1}\n')

    log = read_run(tmp_path)

    assert [entry.event for entry in log.entries] == ["of.tomorrow"]
    assert log.unknown == ("of.tomorrow",)


def test_a_node_without_a_journal_is_named(tmp_path: Path) -> None:
    log = read_run(journals.node_lost(tmp_path))

    assert log.missing_nodes() == ("gpu-02",)


def test_fields_of_the_wrong_type_read_as_absent() -> None:
    line = b'{"v":1,"ts":1,"seq":0,"ev":"x","a":true,"b":[1,"2",true],"c":1e400,"d":{}}'
    entry, _ = parse_line(line, "n1")

    assert entry is not None
    assert entry.integer("a") == -1
    assert entry.integers("b") == (1,)
    assert entry.number("c") == 0.0
    assert entry.text("d") == ""


def test_garbage_in_any_place_is_survived(tmp_path: Path) -> None:
    journals.one_loss(tmp_path)
    path = journal_path(tmp_path, "gpu-01")
    good = path.read_bytes()
    whole = read_run(tmp_path).entries
    rng = random.Random(7)

    for _ in range(40):
        at = rng.randrange(len(good))
        path.write_bytes(good[:at] + rng.randbytes(rng.randrange(200)) + good[at + 50 :])
        log = read_run(tmp_path)
        assert len(log.entries) >= 55
        assert log.unreadable_places or log.gaps or log.unknown or log.entries != whole


def test_every_event_has_a_meaning_and_a_name_of_two_words() -> None:
    for name, event in EVENTS.items():
        assert name.count(".") == 1, name
        assert event.meaning.endswith("."), name
