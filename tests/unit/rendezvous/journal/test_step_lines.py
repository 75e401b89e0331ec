"""Steps in which nothing changes are short lines, and read as what they stand for."""

import random
from pathlib import Path

import pytest

from rendezvous.journal import journal_file
from rendezvous.journal.reader import Entry, read_run
from rendezvous.journal.step_lines import FULL_EVERY, full_lines, step_reason
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.records import Json, Record


def _step(step: int, *, generation: int = 1, replicas: int = 2, **changes: Json) -> Record:
    quota: Json = {str(slot): 4 for slot in range(replicas)}
    fields: dict[str, Json] = {
        "step": step, "generation": generation, "quota": quota, "redone": 0,
        "microbatches": 4 * replicas, "total": 4 * replicas, "ms": 12.345 + step % 7,
    }  # fmt: skip
    fields |= changes
    return Record("step.commit", step_reason(step, fields["microbatches"], fields["total"]), fields)


def _journal(run_dir: Path) -> Journal:
    return Journal(journal_path(run_dir, "n1"), "n1", 100.0)


def _write(book: Journal, *records: Record, begin: float = 0.0) -> None:
    for number, record in enumerate(records):
        at = begin + number / 16
        book.append(record, mono=100.0 + at, wall=1e9 + at)
    assert book.flush(30.0)


def _read(run_dir: Path) -> list[Entry]:
    return list(read_run(run_dir).entries)


def _lines(run_dir: Path) -> list[bytes]:
    return journal_path(run_dir, "n1").read_bytes().splitlines()


def test_what_is_read_is_what_was_recorded(tmp_path: Path) -> None:
    chance = random.Random(7)
    records = []
    generation = 1
    for step in range(600):
        if chance.random() < 0.02:
            generation += 1
            records.append(Record("notice.give", "words", {"rank": step}))
        extra: dict[str, Json] = {"done": {"0": [[1, 0]]}} if chance.random() < 0.05 else {}
        records.append(_step(step, generation=generation, **extra))

    _write(_journal(tmp_path), *records)

    found = _read(tmp_path)
    assert [(one.event, one.reason, dict(one.fields)) for one in found] == [
        (record.event, record.reason, record.fields) for record in records
    ]
    assert [one.seq for one in found] == list(range(len(records)))
    assert all(abs(one.ts - 1e9 - n / 16) < 0.001 for n, one in enumerate(found))
    assert all(abs(one.mono - n / 16) < 0.001 for n, one in enumerate(found))
    assert len(full_lines(_lines(tmp_path))) == len(records)


@pytest.mark.parametrize("replicas", [2, 64])
def test_a_step_without_change_costs_36_bytes_with_any_number_of_replicas(
    tmp_path: Path, replicas: int
) -> None:
    _write(_journal(tmp_path), *(_step(step, replicas=replicas) for step in range(1000)))

    short = [line for line in _lines(tmp_path) if line.startswith(b"[")]
    assert len(short) == 1000 - -(-1000 // FULL_EVERY)
    assert max(map(len, short)) < 36


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 2},
        {"quota": {"0": 8}},
        {"total": 7},
        {"redone": 1},
        {"inferred": [[1, 0]]},
        {"unseen": [3]},
        {"ms": float("inf")},
    ],
)
def test_a_step_that_differs_is_written_in_full(tmp_path: Path, changes: dict[str, Json]) -> None:
    _write(_journal(tmp_path), _step(0), _step(1), _step(2, **changes), _step(3))

    assert [line[:1] for line in _lines(tmp_path)][:3] == [b"{", b"[", b"{"]


def test_a_short_line_is_not_believed_without_the_full_one_that_it_stands_for(
    tmp_path: Path,
) -> None:
    records = [_step(0), _step(1), _step(2, total=6), _step(3, total=6), _step(4, total=6)]
    _write(_journal(tmp_path), *records, _step(5))
    lines = _lines(tmp_path)
    lines[2] = lines[2][:40]
    journal_path(tmp_path, "n1").write_bytes(b"\n".join(lines) + b"\n")

    log = read_run(tmp_path)

    assert [one.integer("step") for one in log.entries] == [0, 1, 5]
    assert [(place.line, place.why) for place in log.unreadable] == [
        (3, "not JSON"),
        (4, "steps whose full record is not there"),
    ]
    assert [(gap.after, gap.before) for gap in log.gaps] == [(1, 5)]


def test_a_damaged_short_line_costs_that_one_step(tmp_path: Path) -> None:
    _write(_journal(tmp_path), *(_step(step) for step in range(6)))
    lines = _lines(tmp_path)
    lines[2] = b"\0" * 40
    journal_path(tmp_path, "n1").write_bytes(b"\n".join(lines) + b"\n")

    log = read_run(tmp_path)

    assert [one.integer("step") for one in log.entries] == [0, 1, 3, 4, 5]
    assert [(gap.after, gap.before) for gap in log.gaps] == [(1, 3)]


def test_a_line_that_the_disk_did_not_take_is_no_full_one_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = _journal(tmp_path)
    _write(book, _step(0), _step(1))

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", full)
        _write(book, _step(2, total=6), begin=0.2)
    _write(book, _step(3, total=6), _step(4, total=6), begin=0.3)

    log = read_run(tmp_path)
    found = [(one.integer("step"), one.integer("total")) for one in log.of("step.commit")]
    assert found == [(0, 8), (1, 8), (3, 6), (4, 6)]
    assert not log.unreadable


def test_another_launcher_that_appends_begins_in_full(tmp_path: Path) -> None:
    _write(_journal(tmp_path), _step(0), _step(1))
    _write(_journal(tmp_path), _step(1, generation=4), _step(2, generation=4), begin=9.0)

    found = _read(tmp_path)
    assert [one.integer("generation") for one in found] == [1, 1, 4, 4]
    assert [line[:1] for line in _lines(tmp_path)] == [b"{", b"[", b"{", b"["]
