"""Reading of whole, cut and hostile journals."""

import random
from pathlib import Path

import pytest

from rendezvous.journal.reader import LINE_LIMIT, RunTail, parse_line, read_run
from rendezvous.journal.step_lines import StepReader
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.records import Record
from tests.unit import journals


def _note(rank: int, reason: str = "words") -> Record:
    return Record("notice.give", reason, {"rank": rank})


class Book:
    """A journal that is in its file whenever it is read."""

    def __init__(self, run_dir: Path, node: str = "n1") -> None:
        self._journal = Journal(journal_path(run_dir, node), node, 100.0)

    def append(self, record: Record, *, mono: float, wall: float) -> None:
        self._journal.append(record, mono=mono, wall=wall)
        assert self._journal.flush(30.0)


def test_nodes_are_merged_by_time_and_each_keeps_its_own_order(tmp_path: Path) -> None:
    one, two = Book(tmp_path, "n1"), Book(tmp_path, "n2")
    for wall, rank in ((1.0, 10), (4.0, 11), (3.3, 12)):  # its clock was set back a little
        one.append(_note(rank), mono=99.0 + wall, wall=wall)
    for wall, rank in ((2.0, 20), (5.0, 21)):
        two.append(_note(rank), mono=100.0 + wall, wall=wall)

    log = read_run(tmp_path)

    assert [entry.integer("rank") for entry in log.entries] == [10, 20, 11, 12, 21]


def test_a_line_beyond_the_limit_is_skipped_and_named(tmp_path: Path) -> None:
    writer = Book(tmp_path)
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
        b'{"v":3,"ts":1,"seq":0,"ev":"run.end"}',
        b"[5,1,2,2.5,3.5]",
        b"[0,1,2," + b"9" * 400 + b",3.5]",
        b'{"v":1,"ts":"late","seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":NaN,"seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":1e999,"seq":0,"ev":"run.end"}',
        b'{"v":1,"ts":1,"seq":' + b"9" * 5000 + b',"ev":"run.end"}',
    ],
)
def test_a_line_that_is_no_record_is_refused_with_a_reason(line: bytes) -> None:
    entry, why = parse_line(line, "n1", StepReader())

    assert entry is None
    assert why


def test_a_tail_reads_only_what_is_new_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    writer, tail = Book(tmp_path), RunTail(tmp_path)
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
    entry, _ = parse_line(line, "n1", StepReader())

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
