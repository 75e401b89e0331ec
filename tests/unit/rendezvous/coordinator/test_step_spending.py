"""The time that steps spend beside computing is told from the rank that others wait for."""

import pytest

from rendezvous.coordinator.step_spending import EARLY, EVERY, StepSpending
from rendezvous.protocol.messages import Committed
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import Identity


def _said(rank: int, step: int, done: int = 1, redone: int = 0, **phases: float) -> Committed:
    own: tuple[Identity, ...] = tuple((rank, index) for index in range(done))
    return Committed(
        rank=rank, generation=1, step=step, done=own, redone=own[:redone], total=3, digest="",
        phases=tuple({"step": 100.0, **phases}.items()),
    )  # fmt: skip


def _told(steps: int, *ranks: dict[str, float], redone: int = 0) -> list[Record]:
    machine, records = StepSpending(), []
    for step in range(steps):
        said = {n: _said(n, step, redone=redone, **phases) for n, phases in enumerate(ranks)}
        records += machine.step(step, said)
    return records + machine.close()


def _sums(records: list[Record], name: str) -> float:
    found = 0.0
    for record in records:
        value = record.fields[name]
        assert isinstance(value, float)
        found += value
    return found


COUNTED = 100


def test_data_that_one_rank_fetches_is_everybodys_and_no_imbalance() -> None:
    late, other = {"reduce": 1.0, "data": 40.0}, {"reduce": 41.0}

    records = _told(EARLY + COUNTED, late, other, other)

    assert _sums(records, "data_ms") == pytest.approx(40 * COUNTED)
    assert _sums(records, "imbalance_ms") == 0.0
    assert _sums(records, "alone_ms") == 0.0


def test_a_rank_that_computes_longer_is_imbalance() -> None:
    records = _told(EARLY + COUNTED, {"reduce": 1.0}, {"reduce": 21.0}, {"reduce": 21.0})

    assert _sums(records, "imbalance_ms") == pytest.approx(20 * COUNTED)
    assert _sums(records, "data_ms") == 0.0


def test_checkpoints_are_told_apart_and_are_no_imbalance() -> None:
    saves = {"reduce": 1.0, "alone": 10.0, "checkpoint": 50.0}

    records = _told(EARLY + COUNTED, saves, {"reduce": 61.0})

    assert _sums(records, "checkpoint_ms") == pytest.approx(50 * COUNTED)
    assert _sums(records, "alone_ms") == pytest.approx(10 * COUNTED)
    assert _sums(records, "imbalance_ms") == 0.0


def test_what_rank_0_does_alone_is_told_as_such() -> None:
    records = _told(EARLY + COUNTED, {"reduce": 1.0, "alone": 60.0}, {"reduce": 61.0})

    assert _sums(records, "alone_ms") == pytest.approx(60 * COUNTED)
    assert _sums(records, "imbalance_ms") == 0.0


def test_one_line_stands_for_many_steps_and_nothing_is_told_of_nothing() -> None:
    records = _told(3 * EVERY, {"reduce": 1.0, "data": 2.0}, {"reduce": 3.0})

    assert len(records) == 3
    assert [record.fields["steps"] for record in records] == [EVERY] * 3
    assert _told(3 * EVERY, {"reduce": 1.0}, {"reduce": 1.0}) == []


def test_steps_in_which_somebody_redoes_and_the_first_ones_are_left_out() -> None:
    assert _told(COUNTED, {"data": 50.0}, {"reduce": 50.0}, redone=1) == []
    assert _told(EARLY, {"data": 50.0}, {"reduce": 50.0}) == []


def test_who_has_less_to_do_waits_without_being_late() -> None:
    machine, records = StepSpending(), []
    for step in range(EARLY + COUNTED):
        said = {0: _said(0, step, done=2, reduce=1.0), 1: _said(1, step, done=1, reduce=50.0)}
        records += machine.step(step, said)

    assert records + machine.close() == []
