"""One step on one rank: what it does, says and refuses."""

from dataclasses import replace

import pytest

from ft_collectives.step.machine import RESEND_AFTER_S
from ft_collectives.step.step_events import (
    Accumulated,
    Apply,
    Break,
    Compute,
    Decided,
    Discarded,
    Ended,
    Reduce,
    Reduced,
    Send,
    Settled,
    Tick,
    Viewed,
    Vote,
    Voted,
)
from rendezvous.protocol.messages import Committed, Decision, Report
from tests.unit.one_rank import COUNTS, FIRST, SECOND, THIRD, Rank, commit, redo, said


def test_a_step_without_losses_reduces_votes_and_applies_without_asking() -> None:
    rank = Rank()

    assert rank.home() == [Reduce(generation=1)]
    assert rank.feed(Reduced(generation=1)) == [Vote(generation=1, ballot=(1, 1, 0, 0, 0, 0))]
    apply, committed = rank.feed(Voted(generation=1, counts=COUNTS))
    assert apply == Apply(step=0)
    assert isinstance(committed, Send) and isinstance(committed.message, Committed)
    assert committed.message.done == ((0, 0), (0, 1))
    assert rank.machine.step_index == 1
    assert rank.machine.deadline() is None


def test_a_view_before_the_commit_point_makes_it_ask_there() -> None:
    rank = Rank()

    at_once = said(rank.feed(Accumulated(identity=(0, 0)), Viewed(view=SECOND)))
    at_commit_point = said(rank.feed(Accumulated(identity=(0, 1)), Settled(microbatches=2)))

    assert (at_once.phase, at_once.done) == ("compute", ((0, 0),))
    assert (at_commit_point.phase, at_commit_point.done) == ("settle", ((0, 0), (0, 1)))


def test_a_surprised_rank_uses_no_standing_quota() -> None:
    rank = Rank()
    rank.home()
    rank.commit()

    effects = rank.feed(Viewed(view=SECOND))
    effects = rank.home()

    assert [type(effect) for effect in effects] == [Send]
    assert rank.machine.plan_is_stale


def test_a_redo_computes_what_is_missing_one_by_one_and_reduces_anew() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()

    effects = rank.feed(redo(2, (0, 0), (0, 1), (2, 0), (2, 1)))

    assert effects == [Compute(identities=((2, 0),))]
    assert rank.feed(Accumulated(identity=(2, 0))) == [Compute(identities=((2, 1),))]
    assert rank.feed(Accumulated(identity=(2, 1))) == [Reduce(generation=2)]


def test_what_is_suspect_is_so_in_that_step_alone() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()
    decided = redo(2, (0, 0), (0, 1), (2, 0), (2, 1))
    suspects = ((2, 1),)

    rank.feed(Decided(decision=replace(decided.decision, suspects=suspects)))

    assert rank.machine.suspects == suspects
    rank.feed(Accumulated(identity=(2, 0)), Accumulated(identity=(2, 1)))
    rank.commit(2)
    assert rank.machine.suspects == ()


def test_the_steps_after_a_redo_follow_the_standing_quota() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()
    rank.feed(redo(2, (0, 0), (0, 1)))
    rank.commit(2)

    assert rank.home() == [Compute(identities=((2, 0),))]
    assert rank.machine.extras() == ((2, 0),)


def test_a_vote_of_an_older_generation_changes_nothing() -> None:
    rank = Rank()
    rank.home()
    rank.feed(Reduced(generation=1))
    report = said(rank.feed(Viewed(view=SECOND)))

    assert report.reduced == 1
    assert rank.feed(Voted(generation=1, counts=COUNTS)) == []
    assert rank.machine.step_index == 0


def test_a_reduction_of_an_older_generation_changes_nothing() -> None:
    rank = Rank()
    rank.home()
    report = said(rank.feed(Viewed(view=SECOND)))

    assert report.reduced == 0
    assert rank.feed(Reduced(generation=1)) == []
    assert rank.machine.report() == report


def test_a_commit_by_decision_leaves_the_next_step_to_ask() -> None:
    rank = Rank()
    rank.home()
    rank.feed(Reduced(generation=1), Viewed(view=SECOND))

    apply, _, report = rank.feed(commit(2, 1))

    assert apply == Apply(step=0)
    assert isinstance(report, Send) and isinstance(report.message, Report)
    assert (report.message.step, report.message.phase) == (1, "compute")
    assert [type(effect) for effect in rank.home()] == [Send]


def test_being_told_to_commit_other_sums_than_it_holds_breaks_inv_3() -> None:
    rank = Rank()
    rank.home()
    rank.feed(Viewed(view=SECOND))

    (effect,) = rank.feed(commit(2, 1))

    assert isinstance(effect, Break) and effect.invariant == "INV-3"


def test_a_vote_that_misses_an_identity_breaks_inv_1() -> None:
    rank = Rank()
    rank.home()

    (effect,) = rank.feed(Reduced(generation=1), Voted(generation=1, counts=(1, 1, 1, 1, 1, 0)))

    assert isinstance(effect, Break) and effect.invariant == "INV-1"


@pytest.mark.parametrize(
    "decision",
    [redo(1, (0, 0)), redo(2, (0, 0), step=1), commit(3, 1)],
    ids=["older generation", "other step", "newer generation"],
)
def test_a_decision_for_another_step_or_generation_changes_nothing(decision: Decided) -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()

    assert rank.feed(decision) == []
    assert rank.machine.state == "asking"


def test_a_second_loss_while_it_makes_up_for_the_first_is_asked_about_after_the_microbatch() -> (
    None
):
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()
    rank.feed(redo(2, (0, 0), (0, 1), (2, 0), (2, 1)))

    at_once = said(rank.feed(Viewed(view=THIRD)))
    afterwards = said(rank.feed(Accumulated(identity=(2, 0))))

    assert (at_once.phase, at_once.begun) == ("compute", ((2, 0),))
    assert (afterwards.phase, afterwards.done) == ("settle", ((0, 0), (0, 1), (2, 0)))


def test_a_rank_joins_what_its_shard_mates_have_begun_and_asks_again() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()
    level = Decision(generation=2, step=0, verdict="level", held=0, targets=((0, ((2, 1),)),))

    assert rank.feed(Decided(decision=level)) == [Compute(identities=((2, 1),))]
    report = said(rank.feed(Accumulated(identity=(2, 1))))

    assert (report.phase, report.done) == ("settle", ((0, 0), (0, 1), (2, 1)))
    assert rank.machine.plan_is_stale


def test_it_joins_its_shard_mates_no_more_once_the_members_have_changed() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()
    both = ((0, ((2, 0), (2, 1))),)
    level = Decision(generation=2, step=0, verdict="level", held=0, targets=both)
    assert rank.feed(Decided(decision=level)) == [Compute(identities=((2, 0),))]

    rank.feed(Viewed(view=THIRD))
    report = said(rank.feed(Accumulated(identity=(2, 0))))

    assert (report.phase, report.generation, report.done) == ("settle", 3, ((0, 0), (0, 1), (2, 0)))


def test_a_rank_that_starts_in_a_later_generation_asks_like_the_others() -> None:
    rank = Rank(view=SECOND)

    assert [type(effect) for effect in rank.home()] == [Send]


def test_a_view_from_before_the_topology_was_known_gets_its_slots() -> None:
    rank = Rank(view=replace(FIRST, live=()))

    assert rank.machine.view == FIRST
    assert rank.home() == [Reduce(generation=1)]


def test_a_report_without_an_answer_is_said_again() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    report = said(rank.home())
    deadline = rank.machine.deadline()

    assert deadline == RESEND_AFTER_S
    assert rank.feed(Tick()) == []
    rank.now = deadline
    assert said(rank.feed(Tick())) == report


def test_a_view_said_again_is_answered_until_the_plan_is_known() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()

    assert said(rank.feed(Viewed(view=SECOND))).generation == 2
    rank.feed(redo(2, (0, 0), (0, 1)))
    assert rank.feed(Viewed(view=SECOND)) == []


def test_an_older_view_changes_nothing() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))

    assert rank.feed(Viewed(view=FIRST)) == []
    assert rank.machine.view == SECOND


def test_a_rank_whose_script_has_ended_says_so_in_every_later_generation() -> None:
    rank = Rank()
    rank.home()
    rank.commit()
    rank.feed(Ended())

    report = said(rank.feed(Viewed(view=SECOND)))

    assert (report.phase, report.step) == ("done", 1)


def test_a_microbatch_computed_twice_is_our_bug() -> None:
    rank = Rank()

    with pytest.raises(AssertionError, match="INV-1"):
        rank.feed(Accumulated(identity=(0, 0)), Accumulated(identity=(0, 0)))


def test_gradients_that_the_script_drops_leave_no_credit() -> None:
    rank = Rank()
    rank.feed(Accumulated(identity=(0, 0)), Discarded())

    assert rank.home() == [Reduce(generation=1)]
    assert rank.machine.report().done == ((0, 0), (0, 1))


# --------------------------------------------------------------------------- the first transaction


def test_what_torch_reduced_is_the_first_transaction_of_all() -> None:
    rank = Rank()

    (committed,) = rank.machine.reduced_by_torch(2)

    assert isinstance(committed, Send) and isinstance(committed.message, Committed)
    assert (committed.message.step, committed.message.done) == (0, ((0, 0), (0, 1)))
    assert (rank.machine.step_index, rank.machine.done) == (1, [])
    assert rank.home() == [Reduce(generation=1)]
    apply, _ = rank.commit()
    assert apply == Apply(step=1)


def test_a_view_during_the_first_transaction_is_met_at_the_end_of_the_second() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))

    committed, signature = rank.machine.reduced_by_torch(2)

    assert isinstance(committed, Send) and isinstance(committed.message, Committed)
    assert (said([signature]).step, said([signature]).generation) == (1, 2)
    report = said(rank.home())
    assert (report.step, report.phase, report.done) == (1, "settle", ((0, 0), (0, 1)))


def test_torch_reduces_no_transaction_but_the_first() -> None:
    rank = Rank()
    rank.home()
    rank.commit()

    with pytest.raises(AssertionError, match="begun already"):
        rank.machine.reduced_by_torch(2)
