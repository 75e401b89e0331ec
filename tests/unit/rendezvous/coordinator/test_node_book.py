"""A node that does not coordinate keeps an account of its own, of what its workers say and hear."""

from dataclasses import replace

from rendezvous.coordinator.node_book import NodeBook
from rendezvous.protocol.messages import Committed, Decision, Notice, Topology
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View
from tests.unit.coordination import applied, verdict

REPLICAS = ((0,), (1,), (2,))
TOPOLOGY = Topology(rank=1, generation=1, strategy="test", replicas=REPLICAS)
ALL = View(generation=1, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=())
WITHOUT_0 = View(generation=2, live=(1, 2), live_ranks=(1, 2), losses=(0,))


def _book() -> NodeBook:
    """Of the node that hosts ranks 1 and 2."""
    book = NodeBook(range(1, 3))
    for message in (ALL, replace(ALL)):
        assert book.heard(message, 0.0) == []
    assert [r.event for r in book.said(TOPOLOGY, 0.0)] == ["topology.learn"]
    assert book.said(replace(TOPOLOGY, rank=2), 0.0) == []
    return book


def _said(book: NodeBook, *messages: Committed) -> list[Record]:
    return [record for message in messages for record in book.said(message, 1.0)]


def _home(step: int, generation: int = 1) -> tuple[Committed, Committed]:
    one, two = applied(1, (1, 0)), applied(2, (2, 0))
    return (
        replace(one, step=step, generation=generation),
        replace(two, step=step, generation=generation),
    )


def test_a_step_is_a_part_once_all_ranks_of_the_node_have_applied_it() -> None:
    book = _book()
    one, two = _home(0)

    assert _said(book, one) == []
    (record,) = _said(book, two)

    assert record.event == "step.part"
    assert record.reason == "step 0: 2 of 3 microbatches"
    assert record.fields == {
        "step": 0, "generation": 1, "quota": {"1": 1, "2": 1}, "redone": 0,
        "microbatches": 2, "total": 3, "ms": 0.0,
    }  # fmt: skip


def test_the_promise_is_stated_once_both_ranks_have_said_theirs() -> None:
    book = _book()

    assert book.said(verdict(1), 0.0) == []
    assert book.said(verdict(0, "unprotected"), 0.0) == []  # not a rank of this node
    (record,) = book.said(verdict(2, "equal-count"), 0.0)

    assert record.event == "promise.state"
    assert (record.fields["promise"], record.fields["part"]) == ("equal-count", True)


def test_a_loss_elsewhere_is_recorded_once_and_made_good_by_the_step_after_it() -> None:
    book = _book()
    _said(book, *_home(0))

    lost = [r for _ in range(2) for r in book.heard(WITHOUT_0, 1.0)]
    targets = ((1, ((0, 0), (1, 0))), (2, ((2, 0),)))
    decision = Decision(generation=2, step=1, verdict="redo", held=0, targets=targets)
    assert book.heard(decision, 1.0) == []
    redone = replace(applied(1, (0, 0), (1, 0)), step=1, redone=((0, 0),))
    made = _said(book, redone, _home(1, 2)[1])

    assert [record.event for record in lost] == ["replica.lost", "view.change"]
    assert (lost[0].fields["slot"], lost[0].fields["root_rank"]) == (0, 0)
    assert [record.event for record in made] == ["step.part", "recovery.done"]
    assert made[0].fields["done"] == {"1": [[0, 0], [1, 0]], "2": [[2, 0]]}
    assert (made[0].fields["redone"], made[0].fields["microbatches"]) == (1, 3)
    assert made[1].fields["redone"] == [[0, 0]]
    assert (made[1].fields["live"], made[1].fields["of"]) == (2, 3)  # of all nodes
    assert all(r.fields["part"] for r in (*lost, made[1]))


def test_a_loss_here_leaves_the_other_ranks_to_tell() -> None:
    book = _book()
    book.heard(View(generation=2, live=(0, 1), live_ranks=(0, 1), losses=(2,)), 1.0)

    (record, _) = _said(book, replace(applied(1, (1, 0), (2, 0)), redone=((2, 0),)))

    assert record.fields["quota"] == {"1": 2}


def test_at_the_end_a_step_is_told_by_those_who_have_applied_it() -> None:
    book = _book()
    _said(book, _home(0)[0])

    (record,) = book.close()

    assert record.fields["quota"] == {"1": 1}


def test_that_the_promise_came_down_is_kept_and_other_notices_are_the_coordinators() -> None:
    book = _book()
    one = Notice(rank=1, generation=1, event="promise.weaken", reason="why")

    (record,) = book.said(one, 0.0)

    assert (record.event, record.fields["event"]) == ("notice.give", "promise.weaken")
    assert book.said(replace(one, event="notice.give"), 0.0) == []


def test_replicas_that_are_no_layout_are_for_the_coordinator_to_refuse() -> None:
    book = NodeBook(range(2))

    assert book.said(replace(TOPOLOGY, replicas=((0,), (0,))), 0.0) == []
    assert _said(book, *_home(0)) == []


def test_a_replica_of_this_node_that_comes_back_is_recorded_and_waited_for() -> None:
    book = _book()
    _said(book, *_home(0))
    book.heard(View(generation=2, live=(0, 1), live_ranks=(0, 1), losses=(2,)), 1.0)
    back = View(
        generation=3, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=(), joined=(2,), from_step=2
    )
    told = [record for _ in range(2) for record in book.heard(back, 2.0)]
    old = _said(book, replace(applied(1, (1, 0), (2, 0)), step=1, redone=((2, 0),)))
    one, two = _home(2, 3)
    first, then = _said(book, one), _said(book, two)

    assert [record.event for record in told] == ["view.change", "replica.return"]
    assert told[1].fields == {"slot": 2, "ranks": [2], "step": 2, "part": True}
    assert [record.event for record in old] == ["step.part", "recovery.done"]
    assert old[0].fields["quota"] == {"1": 2}
    assert [record.event for record in first] == ["replica.prove"]
    assert first[0].fields == {"slot": 2, "ranks": [2], "step": 2, "part": True}
    assert [record.event for record in then] == ["step.part"]
    assert then[0].fields["quota"] == {"1": 1, "2": 1}


def test_a_return_to_a_node_that_had_no_other_rank_is_no_recovery() -> None:
    book = NodeBook([2])
    book.heard(ALL, 0.0)
    book.said(replace(TOPOLOGY, rank=2), 0.0)
    without = View(generation=2, live=(0, 1), live_ranks=(0, 1), losses=(2,))
    back = View(
        generation=3, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=(), joined=(2,), from_step=5
    )

    lost = book.heard(without, 1.0)
    book.heard(back, 9.0)
    records = _said(book, _home(5, 3)[1], _home(6, 3)[1])

    assert [record.event for record in lost] == ["replica.lost", "view.change"]
    assert "step.part" in {record.event for record in records}
    assert "recovery.done" not in {record.event for record in records}
