"""A promise only goes down, and is said once."""

import itertools
from typing import Any

import pytest

from recoverrun.worker.step.guarantee import Guarantee
from recoverrun.worker.step.reporter import Reporter
from rendezvous.coordinator.guarantees import WEAKEST_FIRST
from rendezvous.protocol.messages import UNSAID, Notice, Promise, Verdict


class Link:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def made(*, exact: bool = False) -> tuple[Guarantee, Link]:
    link = Link()
    reporter = Reporter(link, 3, lambda: 2, exact=exact)  # type: ignore[arg-type]
    return Guarantee(reporter, lambda: 4), link


@pytest.mark.parametrize(
    ("promise", "exact", "protects"),
    [(None, False, False), ("exact-samples", True, True), ("equal-count", False, True),
     ("rollback", False, False), ("unprotected", False, False)],
)  # fmt: skip
def test_what_follows_from_a_promise(promise: Promise | None, exact: bool, protects: bool) -> None:
    guarantee, _ = made()
    if promise is not None:
        guarantee.state(promise, "checked")

    assert (guarantee.exact, guarantee.protects) == (exact, protects)


def test_a_promise_is_said_with_its_reason_and_the_shape_of_a_transaction() -> None:
    guarantee, link = made()

    guarantee.state("exact-samples", "checked")

    assert link.sent == [
        Verdict(rank=3, generation=2, promise="exact-samples", microbatches=4, reason="checked")
    ]


def test_a_rank_says_what_it_found_itself_where_another_one_found_less() -> None:
    guarantee, link = made()

    guarantee.state("equal-count", "checked", own="exact-samples")

    assert guarantee.promise == "equal-count" and not guarantee.exact
    assert [one.promise for one in link.sent] == ["exact-samples"]


@pytest.mark.parametrize("course", list(itertools.permutations(WEAKEST_FIRST)))
def test_in_whatever_order_promises_come_none_ever_rises(course: tuple[Promise, ...]) -> None:
    guarantee, link = made()
    known: list[Promise] = []
    for promise in course:
        guarantee.state(promise, f"because {promise}")
        assert guarantee.promise is not None
        known.append(guarantee.promise)

    lowest = [min(course[: n + 1], key=WEAKEST_FIRST.index) for n in range(len(course))]
    assert known == lowest
    assert [one.promise for one in link.sent] == list(dict.fromkeys(lowest)), "each is said once"


def test_what_is_not_protected_has_a_reason_and_the_first_one_stands() -> None:
    guarantee, _ = made()
    assert guarantee.refusal == ""

    guarantee.state("unprotected", "one replica")
    guarantee.state("unprotected", "another reason")

    assert guarantee.refusal == "one replica"


def test_whoever_goes_back_has_a_reason_until_there_are_no_snapshots_any_more() -> None:
    guarantee, link = made()

    guarantee.state("rollback", "one replica")
    assert guarantee.refusal == "one replica"
    guarantee.state("unprotected", "snapshots are off: no memory")

    assert guarantee.refusal == "snapshots are off: no memory"
    assert [one.promise for one in link.sent] == ["rollback", "unprotected"]


def test_a_lower_promise_is_told_once_by_every_rank() -> None:
    guarantee, link = made()
    guarantee.state("exact-samples", "checked")
    guarantee.weaken("numbers move")
    guarantee.weaken("and move")

    assert guarantee.promise == "equal-count"
    (said,) = link.sent[1:]
    assert isinstance(said, Notice) and said.event == "promise.weaken"
    assert said.reason == "from here on equal-count: numbers move"

    unknowing, link = made()
    unknowing.state("exact-samples", "checked")
    unknowing.weaken("")
    assert unknowing.promise == "equal-count"
    assert link.sent[-1].reason == f"from here on equal-count: {UNSAID}"


def test_who_asked_for_exact_sums_is_told_that_they_are_none() -> None:
    guarantee, link = made(exact=True)
    guarantee.state("exact-samples", "checked")
    guarantee.weaken("numbers move")

    assert link.sent[-1].reason == "from here on not exact, equal-count: numbers move"


def test_what_is_not_protected_is_not_made_up_again_by_weakening() -> None:
    guarantee, link = made()
    guarantee.state("unprotected", "one replica")

    guarantee.weaken("numbers move")

    assert guarantee.promise == "unprotected" and len(link.sent) == 1


def test_a_promise_that_is_held_back_is_said_once_it_can_be_kept() -> None:
    guarantee, link = made()
    guarantee.hold_back("rollback", "one process")
    assert (guarantee.promise, guarantee.refusal, link.sent) == ("rollback", "one process", [])

    guarantee.tell("every 5 steps")
    guarantee.tell("every 9 steps")

    assert [(one.promise, one.reason) for one in link.sent] == [("rollback", "every 5 steps")]


def test_a_promise_that_was_held_back_and_cannot_be_kept_is_never_said() -> None:
    guarantee, link = made()
    guarantee.hold_back("rollback", "one process")
    guarantee.state("unprotected", "no room")
    guarantee.tell()

    assert [(one.promise, one.reason) for one in link.sent] == [("unprotected", "no room")]
