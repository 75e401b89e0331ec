"""The book of committed steps: one line a step, whoever speaks, in whatever order."""

import random

import pytest

from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.step_log import WAITING_MOST, StepBook
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Committed, Decision
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import Identity

LAYOUT = Layout(((0,), (1,), (2,)))
ALL = frozenset({0, 1, 2})


def _said(
    rank: int, step: int, *done: Identity, generation: int = 1, digest: str = ""
) -> Committed:
    done = done or ((rank, 0), (rank, 1))
    redone = tuple(identity for identity in done if identity[0] != rank)
    return Committed(rank=rank, generation=generation, step=step, done=done, redone=redone,
                     total=6, digest=digest)  # fmt: skip


def _lost(slot: int, generation: int) -> Loss:
    return Loss(slot=slot, root_rank=slot, code=-9, generation=generation, lost_at=1.0,
                failed_at=1.0, detected_s=0.002, error="", reason="words")  # fmt: skip


def _write(book: StepBook, *said: Committed, live: frozenset[int] = ALL) -> list[Record]:
    records: list[Record] = []
    for one in said:
        book.enter(one, 2.0, live=len(live))
        records += book.write(LAYOUT, live)
    return records


def test_a_step_is_written_when_all_live_ranks_have_spoken() -> None:
    book = StepBook()

    early = _write(book, _said(0, 0), _said(2, 0))
    (line,) = _write(book, _said(1, 0))

    assert early == []
    assert line.fields["quota"] == {"0": 2, "1": 2, "2": 2}
    assert (line.fields["microbatches"], line.fields["total"]) == (6, 6)
    assert "done" not in line.fields


def test_statements_in_any_order_and_twice_make_one_line_a_step() -> None:
    book = StepBook()
    said = [_said(rank, step) for step in (1, 0) for rank in (2, 1, 0)]

    lines = _write(book, *said, *said)

    assert [line.fields["step"] for line in lines] == [0, 1]


def test_a_lost_statement_holds_a_line_up_for_two_steps_only() -> None:
    book = StepBook()
    lines = _write(book, *(_said(rank, 0) for rank in (0, 1)))
    lines += _write(book, *(_said(rank, step) for step in (1, 2) for rank in (0, 1, 2)))

    assert [line.fields["step"] for line in lines] == [0, 1, 2]
    assert lines[0].fields["unseen"] == [2]
    assert lines[0].fields["inferred"] == [[2, 0], [2, 1]]


def test_who_did_what_is_written_where_it_differs_from_home() -> None:
    book = StepBook()
    live = frozenset({0, 1})

    (line,) = _write(
        book, _said(0, 0, (0, 0), (0, 1), (2, 0)), _said(1, 0, (1, 0), (1, 1), (2, 1)), live=live
    )

    assert line.fields["redone"] == 2
    assert line.fields["done"] == {
        "0": [[0, 0], [0, 1], [2, 0]], "1": [[1, 0], [1, 1], [2, 1]]
    }  # fmt: skip


def test_what_the_dead_did_is_theirs_by_the_plan_of_the_generation_that_was_reduced() -> None:
    book = StepBook()
    book.open(2, (1, 2))  # slot 0 is lost: slots 1 and 2 have its microbatches
    book.open(3, (1,))
    book.decide(Decision(generation=3, step=0, verdict="commit", held=2, targets=()), 1.0)

    (line,) = _write(book, _said(1, 0, (0, 0), (1, 0), (1, 1), generation=3), live=frozenset({1}))

    assert line.fields["quota"] == {"1": 3, "2": 3}
    assert line.fields["inferred"] == [[0, 1], [2, 0], [2, 1]]


def test_a_recovery_is_done_when_all_survivors_committed_in_its_generation() -> None:
    book = StepBook()
    book.lose(_lost(2, 2))
    live = frozenset({0, 1})

    early = _write(book, _said(0, 0), _said(1, 0, generation=2), live=live)
    done = _write(book, _said(0, 1, generation=2), _said(1, 1, generation=2), live=live)

    assert [record.event for record in early] == ["step.commit"]
    assert [record.event for record in done] == ["step.commit", "recovery.done"]
    assert done[1].fields["slots"] == [2]


def test_losses_of_several_generations_are_made_good_by_one_step() -> None:
    book = StepBook()
    book.lose(_lost(2, 2))
    book.lose(_lost(1, 3))

    records = _write(book, _said(0, 0, generation=3), live=frozenset({0}))

    (done,) = (record for record in records if record.event == "recovery.done")
    assert done.fields["slots"] == [1, 2]
    assert done.fields["root_ranks"] == [1, 2]


def test_a_line_that_waited_for_the_dead_is_written_when_they_leave() -> None:
    book = StepBook()
    _write(book, _said(0, 0), _said(1, 0))

    (line,) = book.write(LAYOUT, frozenset({0, 1}))

    assert line.fields["inferred"] == [[2, 0], [2, 1]]


def test_the_end_of_the_job_writes_what_is_left_and_says_who_did_not_speak() -> None:
    book = StepBook()
    _write(book, _said(0, 0))

    (line,) = book.write(LAYOUT, ALL, final=True)

    assert line.fields["unseen"] == [1, 2]


def test_lines_do_not_wait_for_ever_for_a_rank_whose_launcher_is_silent() -> None:
    book = StepBook()
    last = WAITING_MOST + 9
    lines = [
        line
        for step in range(last + 1)
        for line in _write(book, *(_said(rank, step) for rank in (0, 1)))
    ]

    assert [line.fields["step"] for line in lines] == list(range(last - WAITING_MOST + 1))
    assert all(line.fields["unseen"] == [2] for line in lines)
    assert len(book.pages) == WAITING_MOST
    assert _write(book, _said(2, 0)) == []


def test_a_late_word_of_a_dead_rank_writes_no_step_again() -> None:
    book = StepBook()
    _write(book, _said(0, 0), _said(1, 0), live=frozenset({0, 1}))

    assert _write(book, _said(2, 0), live=frozenset({0, 1})) == []


def test_digests_are_compared_within_a_shard_position() -> None:
    book = StepBook()
    agree = _write(book, *(_said(rank, 0, digest="a") for rank in range(3)))
    differ = _write(book, *(_said(rank, 1, digest="ab"[rank % 2]) for rank in range(3)))

    assert [record.event for record in agree] == ["step.commit", "digest.agree"]
    assert [record.event for record in differ] == ["step.commit", "digest.differ"]
    assert "[[0, 2], [1]]" in differ[1].reason


@pytest.mark.parametrize("seed", range(200))
def test_a_line_is_never_due_where_entering_has_not_said_so(seed: int) -> None:
    """Statements are lost, late, and of ranks that leave; each is entered, and all is tried."""
    rng = random.Random(seed)
    book, live = StepBook(), set(ALL)
    said = [_said(rank, step) for step in range(8) for rank in ALL if rng.random() < 0.8]
    said.sort(key=lambda one: one.step + rng.random() * rng.choice((0, 1, 3, 9)))
    for one in said:
        if len(live) > 1 and rng.random() < 0.05:
            live.discard(rng.choice(sorted(live)))
            book.write(LAYOUT, frozenset(live))
        due = book.enter(one, 2.0, live=len(live))
        assert due or book.write(LAYOUT, frozenset(live)) == []
        book.write(LAYOUT, frozenset(live))
