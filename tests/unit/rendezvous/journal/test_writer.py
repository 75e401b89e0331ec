"""Recording waits for no disk, keeps the order, and says what could not be written."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.journal import journal_file
from rendezvous.journal.reader import read_run
from rendezvous.journal.writer import Journal, journal_path
from rendezvous.protocol.records import Record

PATIENCE_S = 30.0
END = Record("run.end", "over", {"exit_code": 0, "root_rank": -1})


def _note(rank: int) -> Record:
    return Record("notice.give", "words", {"rank": rank})


class Stall:
    """A disk that takes nothing until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self._go_on = threading.Event()
        write = os.write

        def stalled(fd: int, data: bytes) -> int:
            self.reached.set()
            assert self._go_on.wait(PATIENCE_S), "nobody let it go"
            return write(fd, data)

        monkeypatch.setattr(journal_file.os, "write", stalled)

    def go_on(self) -> None:
        self._go_on.set()


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    stalled = Stall(monkeypatch)
    yield stalled
    stalled.go_on()


def _journal(tmp_path: Path, most_lines: int = 100) -> Journal:
    return Journal(journal_path(tmp_path, "n1"), "n1", 100.0, most_lines=most_lines)


def test_a_disk_that_stalls_holds_up_nobody_and_loses_nothing(tmp_path: Path, stall: Stall) -> None:
    book = _journal(tmp_path)

    for rank in range(50):
        book.append(_note(rank), mono=100.0, wall=1.0)
    assert stall.reached.wait(PATIENCE_S)
    now = time.monotonic()
    trouble = book.trouble(now + 5.0)
    stall.go_on()

    assert book.close(PATIENCE_S) == 0
    assert trouble.startswith("the disk stalls")
    assert book.trouble(now + 5.0) == ""
    log = read_run(tmp_path)
    assert [entry.integer("rank") for entry in log.entries] == list(range(50))
    assert book.missed() is None


def test_what_a_full_queue_refuses_is_told_in_its_place(tmp_path: Path, stall: Stall) -> None:
    book = _journal(tmp_path, most_lines=3)

    for rank in range(10):
        book.append(_note(rank), mono=100.0, wall=1.0)
    book.append(END, mono=100.0, wall=1.0)
    missed = book.missed()
    stall.go_on()

    assert book.close(PATIENCE_S) == 0
    assert missed is not None and missed.records == 7
    log = read_run(tmp_path)
    found = [(entry.event, entry.integer("records", 0)) for entry in log.entries]
    assert found == [("notice.give", 0)] * 3 + [("journal.drop", 7), ("run.end", 0)]


def test_what_was_refused_is_told_as_soon_as_there_is_room(tmp_path: Path, stall: Stall) -> None:
    book = _journal(tmp_path, most_lines=2)
    for rank in range(4):
        book.append(_note(rank), mono=100.0, wall=1.0)
    stall.go_on()
    assert book.flush(PATIENCE_S)

    book.tick(101.0)

    assert book.flush(PATIENCE_S)
    assert [entry.event for entry in read_run(tmp_path).entries][-1] == "journal.drop"


def test_an_end_that_the_disk_does_not_take_is_given_up(tmp_path: Path, stall: Stall) -> None:
    book = _journal(tmp_path)
    for rank in range(3):
        book.append(_note(rank), mono=100.0, wall=1.0)

    assert book.close(0.05) == 3


def test_a_journal_that_cannot_be_had_is_an_error_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(journal_path(tmp_path, "n1"))

    with pytest.raises(OSError, match="regular"):
        _journal(tmp_path)


def test_a_record_is_in_the_file_before_anybody_asks_for_it(tmp_path: Path) -> None:
    """So that what a launcher has recorded outlives its SIGKILL."""
    book = _journal(tmp_path)

    book.append(_note(0), mono=100.0, wall=1.0)

    until = time.monotonic() + PATIENCE_S
    while not read_run(tmp_path).entries:
        assert time.monotonic() < until, "nothing was written"
        time.sleep(0.001)  # what another thread writes to a file
    book.close(PATIENCE_S)


def test_appending_to_a_closed_journal_raises_nothing(tmp_path: Path) -> None:
    book = _journal(tmp_path)
    book.close(PATIENCE_S)
    book.close(PATIENCE_S)

    book.append(_note(0), mono=100.0, wall=1.0)
