"""Whole and safe snapshots, and how often a job goes back."""

import pytest

from rendezvous.coordinator.snapshots import ALIKE, BARREN
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Holding, Order, Restored
from rendezvous.snapshots.identity import NO_ORDER, NONE, SnapshotId
from tests.unit.snapshot_books import PLACES, Book

SAFE = ["snapshot.whole", "snapshot.safe"]


def test_a_snapshot_is_safe_once_each_rank_has_its_part_and_keeps_it() -> None:
    book = Book()

    assert book.holds("a", (0, 5)) == []
    assert book.holds("b", (0, 5)) == SAFE
    assert book.safe == SnapshotId(0, 5)
    assert set(book.orders.values()) == {(0, 2, (0, 5), NONE)}


def test_what_is_gone_when_it_is_to_be_kept_is_never_safe() -> None:
    book = Book()
    book.safe_again((0, 5))
    book.holds("a", (0, 5), (0, 6))
    book.deaf = {"b"}
    assert book.holds("b", (0, 5), (0, 6)) == ["snapshot.whole"]
    book.holds("b", (0, 5))  # its part of 6 is being written over; then it hears the order
    book.deaf = set()
    book.holds("b", (0, 5))

    assert book.safe == SnapshotId(0, 5)
    assert book.orders["a"][2:] == ((0, 5), NONE)  # so another one can be taken
    book.holds("a", (0, 5), (0, 7))
    assert book.holds("b", (0, 5), (0, 7)) == SAFE


def test_an_order_that_was_missed_is_given_again() -> None:
    book = Book()
    book.deaf = {"b"}
    book.safe_again((0, 5))
    assert book.safe == NONE
    book.deaf = set()

    assert "snapshot.safe" in book.holds("b", (0, 5))


def test_what_is_safe_is_not_all_there_where_a_node_is_lost() -> None:
    book = Book()
    book.safe_again((0, 5))
    assert book.at_hand == book.safe == SnapshotId(0, 5)

    book.lose("b")  # a replica survives that, and the attempt goes on

    assert (book.safe, book.at_hand) == (SnapshotId(0, 5), NONE)


def test_a_coordinator_that_takes_over_learns_what_is_safe() -> None:
    first = Book()
    first.safe_again((0, 5))
    first.holds("a", (0, 5), (0, 6))
    book = Book()
    book.orders = first.orders
    book.holds("a", (0, 5), (0, 6))

    assert book.safe == SnapshotId(0, 5)
    assert book.holds("b", (0, 5), (0, 6)) == SAFE


def test_an_order_that_came_later_than_its_coordinator_lived_is_taken_over() -> None:
    book = Book()
    book.safe_again((0, 5))
    number = book.orders["a"][1]
    theirs: Order = (0, number, SnapshotId(0, 5), SnapshotId(0, 6))  # with a number of ours
    book.orders = dict.fromkeys(PLACES, theirs)
    book.holds("a", (0, 5), (0, 6))
    assert book.next == SnapshotId(0, 6)

    book.holds("b", (0, 5))  # its part was written over meanwhile
    assert book.next == NONE
    book.safe_again((0, 5), (0, 7))
    assert book.safe == SnapshotId(0, 7)


def test_totals_may_come_twice_and_old_ones_late() -> None:
    book = Book()
    late = Holding(keeper=1, serial=99, order=NO_ORDER, held=())
    book.holds("a", (0, 5), keeper=2)
    book.holds("a", (0, 5), keeper=2)
    assert book.hears("a", late) == []
    assert book.holds("b", (0, 5)) == SAFE
    assert book.holds("b", (0, 5)) == []


def test_parts_that_a_node_has_of_ranks_elsewhere_do_not_count() -> None:
    book = Book()
    held = tuple((0, 5, 4, rank, 1) for rank in range(4))
    book.hear("a", Holding(keeper=1, serial=1, order=NO_ORDER, held=held), 0.0)

    assert book.newest is None


def test_a_lost_node_takes_its_parts_along() -> None:
    book = Book()
    book.safe_again((0, 5))
    assert book.newest == SnapshotId(0, 5)
    book.lose("b")

    assert book.newest is None
    assert not book.grant()


def test_a_snapshot_of_an_attempt_that_is_over_is_not_safe_anew() -> None:
    book = Book()
    book.safe_again((0, 5))
    book.holds("a", (0, 5), (0, 9))
    book.begin(1, PLACES, SnapshotId(0, 5), 1.0)

    assert book.holds("b", (0, 5), (0, 9)) == []
    assert book.safe == SnapshotId(0, 5)


def test_a_newer_attempt_is_newer_whatever_its_step() -> None:
    book = Book()
    book.safe_again((0, 9))
    book.begin(1, PLACES, SnapshotId(0, 9), 1.0)
    book.holds("a", (0, 9), (1, 10))

    assert book.holds("b", (0, 9), (1, 10)) == SAFE


def test_a_job_goes_back_as_long_as_that_leads_on() -> None:
    book = Book()
    book.safe_again((0, 5))
    for attempt in range(1, BARREN + 1):
        assert book.grant()
        book.begin(attempt, PLACES, SnapshotId(0, 5), 1.0)
        book.safe_again((0, 5), (attempt, 5))  # the same step again is no progress
    assert not book.grant()
    book.safe_again((0, 5), (BARREN, 6))
    assert book.grant()


def _goes_back(book: Book, attempt: int, rank: int, code: int, step: int) -> bool:
    """Newer snapshots got safe, then the end."""
    book.safe_again((attempt, 5 + attempt))
    book.exited(step, rank=rank)
    book.exited(step + 1, rank=3)  # it was ended, as all are
    if not book.grant(rank, code):
        return False
    book.begin(attempt + 1, PLACES, SnapshotId(attempt, 5 + attempt), 1.0)
    return True


def test_attempts_that_end_alike_do_not_lead_on_whatever_snapshots_they_took() -> None:
    book = Book()
    for attempt in range(ALIKE):
        assert _goes_back(book, attempt, rank=1, code=139, step=30)

    assert not _goes_back(book, ALIKE, rank=1, code=139, step=30)
    words = "rank 1 has ended alike, at step 30, in 3 attempts in a row"
    assert book.in_vain == f"the snapshot of step 7 cannot be gone back to: {words}"


@pytest.mark.parametrize(
    "other",
    [
        {"rank": 2, "code": 137, "step": 30},
        {"rank": 1, "code": 139, "step": 30},
        {"rank": 1, "code": 137, "step": 31},
        {"rank": 1, "code": 137, "step": -1},
    ],
)
def test_an_end_of_another_kind_leads_on(other: dict[str, int]) -> None:
    book = Book()
    ends = [{"rank": 1, "code": 137, "step": 30}, other]

    assert all(_goes_back(book, attempt, **ends[attempt % 2]) for attempt in range(2 * ALIKE + 2))


def test_ends_at_a_step_that_nobody_knows_are_not_alike() -> None:
    book = Book()

    assert all(_goes_back(book, attempt, 1, 137, -1) for attempt in range(ALIKE + 3))


def test_steps_that_are_done_again_are_counted_from_where_the_ranks_were() -> None:
    book = Book()
    book.safe_again((0, 5))
    book.exited(7)
    book.exited(8)
    book.end(10.0)
    (record,) = book.begin(1, PLACES, SnapshotId(0, 5), 11.0)

    assert record.event == "snapshot.plan"
    assert dict(record.fields) == {"attempt": 1, "of": 0, "step": 5, "back": 3}


def test_where_an_attempt_counts_its_steps_anew_they_are_added_to_what_it_began_with() -> None:
    book = Book()
    book.safe_again((0, 5))
    book.begin(1, PLACES, SnapshotId(0, 5), 10.0)
    book.exited(4, anew=True)
    book.exited(-1, anew=True)
    book.end(11.0)
    (record,) = book.begin(2, PLACES, SnapshotId(0, 5), 12.0)

    assert record.fields["back"] == 4


def test_the_last_rank_that_stands_there_again_ends_the_account() -> None:
    book = Book()
    book.safe_again((0, 5))
    book.end(10.0)
    book.begin(1, PLACES, SnapshotId(0, 5), 11.0)

    def stands(rank: int, step: int = 5) -> list[Record]:
        said = Restored(rank=rank, incarnation=1 << 16, attempt=0, step=step, state_ms=rank)
        return book.restored(said, 14.0)

    assert stands(0) == stands(1) == stands(2) == stands(2) == stands(3, step=4) == []
    (record,) = stands(3)
    assert (record.event, record.fields["away_ms"], record.fields["end_ms"]) == (
        "snapshot.restored", 4000, 1000,
    )  # fmt: skip
    assert record.fields["state_ms"] == 3
    assert stands(3) == []


def test_a_part_that_cannot_be_had_is_lost_and_what_all_have_is_next() -> None:
    book = Book()
    book.safe_again((0, 5), (0, 9))
    book.end(10.0)
    book.begin(1, PLACES, SnapshotId(0, 9), 11.0)
    failed = Restored(
        rank=3, incarnation=1 << 16, attempt=0, step=9, state_ms=0, failed="part 0 is damaged"
    )

    assert book.restored(failed, 12.0) == []
    assert (book.spoilt, book.newest, book.grant()) == (True, SnapshotId(0, 5), True)
    book.begin(2, PLACES, SnapshotId(0, 5), 13.0)
    assert not book.spoilt


def test_why_nobody_goes_back_is_said() -> None:
    book = Book()
    assert book.in_vain == ""
    book.safe_again((0, 1240))
    for attempt in range(1, BARREN + 1):
        book.grant()
        book.begin(attempt, PLACES, SnapshotId(0, 1240), 1.0)
    words = "the snapshot of step 1240 cannot be gone back to: "

    assert book.in_vain == f"{words}3 times in a row no newer one became safe"
    book.lose("b")
    assert book.in_vain == f"{words}parts of it are lost"
