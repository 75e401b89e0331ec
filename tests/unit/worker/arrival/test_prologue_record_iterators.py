"""Collectives of iterators over data, for a newcomer that goes over them again."""

import pytest

from recoverrun.worker.arrival import prologue_record
from recoverrun.worker.arrival.prologue_record import PrologueRecord
from tests.unit.arrivals import Process
from tests.unit.worker.arrival.test_prologue_record import LAYOUT, Group

ITERATORS = """
def loader(epoch):
    ask("begins", epoch)
    for step in range(3):
        yield step
        ask("more", epoch, step)
for epoch in range(4):
    for step in loader(epoch):
        ask("step", epoch, step)
        train(step)
        told(epoch, step)
"""


def test_what_an_iterator_called_is_kept_as_long_as_it_is_gone_over() -> None:
    """Also in the loop that trains: a newcomer's iterator passes the same items."""
    found: dict[tuple[int, int], list[str]] = {}

    def told(epoch: int, step: int) -> None:
        record.pack(LAYOUT)
        record.close_in("s.py:8")
        found[epoch, step] = group.kept()

    process = Process(ITERATORS, 0, 0, ask=lambda *what: group.ask(*what), told=told)
    record = PrologueRecord(process.runtime)
    group = Group(record)
    process.run()

    assert found[0, 0] == ["begins 0"]
    assert found[2, 2] == ["begins 2", "more 2 0", "more 2 1"]


def test_what_iterators_call_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue_record, "MOST_CALLS", 2)
    process = Process(ITERATORS, 0, 0, ask=lambda *what: group.ask(*what), told=lambda *at: None)
    record = PrologueRecord(process.runtime)
    group = Group(record)
    record.close_in("s.py:8")
    process.run()

    assert group.names.count("begins 3") == 1
    assert group.kept() == ["begins 3", "more 3 0"]
