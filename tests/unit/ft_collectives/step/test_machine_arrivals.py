"""Others join between two steps: who stops for them, and how the next step begins."""

import pytest

from ft_collectives.step.machine import StepMachine
from ft_collectives.step.step_events import (
    Accumulated,
    Invited,
    Reduce,
    Reduced,
    Send,
    Settled,
    Viewed,
    Vote,
    Voted,
)
from rendezvous.protocol.arrival_messages import Held
from rendezvous.protocol.messages import Committed
from rendezvous.protocol.views import View
from tests.unit.one_rank import COUNTS, LAYOUT, SECOND, THIRD, Rank, said

BACK = View(generation=3, live=(0, 1, 2), live_ranks=(0, 1, 2), losses=(), joined=(2,), from_step=1)


def _with_two(step: int = 0) -> Rank:
    """Rank 0 at the end of `step` in the second generation, about to vote; slot 2 is lost."""
    rank = Rank(SECOND)
    rank.machine.planned_in = 2
    rank.machine.step_index = step
    rank.home()
    rank.feed(Accumulated(identity=(2, 0)), Reduced(generation=2))
    return rank


def _voted(invited: int) -> Voted:
    return Voted(generation=2, counts=COUNTS, invited=invited)


def test_a_ballot_counts_that_lost_ranks_are_said_to_be_ready_in_this_generation() -> None:
    for generation, invited in ((1, False), (2, True), (3, False)):
        rank = Rank(SECOND)
        rank.machine.planned_in = 2
        rank.home()
        rank.feed(Accumulated(identity=(2, 0)), Invited(generation=generation))

        (vote,) = rank.feed(Reduced(generation=2))
        assert vote == Vote(generation=2, ballot=(1, 1, 0, 0, 1, 0), invited=invited)


@pytest.mark.parametrize(("invited", "held"), [(0, False), (1, False), (2, True)])
def test_a_rank_stops_before_a_step_if_all_members_have_told_that_they_know(
    invited: int, held: bool
) -> None:
    rank = _with_two()
    rank.feed(_voted(invited))

    assert rank.machine.held() == (Held(rank=0, generation=2, step=1) if held else None)


def test_a_rank_that_has_begun_a_step_or_passed_it_does_not_stop_in_it() -> None:
    rank = _with_two()
    rank.feed(_voted(2))
    rank.feed(Accumulated(identity=(0, 0)))

    assert rank.machine.held() is None


def test_a_newer_view_lets_who_is_held_go_on() -> None:
    rank = _with_two()
    rank.feed(_voted(2))
    rank.feed(Viewed(view=THIRD))

    assert rank.machine.held() is None and rank.machine.plan_is_stale


def test_a_view_that_others_join_by_is_no_surprise_and_nothing_issaid() -> None:
    rank = _with_two()
    rank.feed(_voted(2))

    assert rank.feed(Viewed(view=BACK)) == []
    assert rank.machine.held() is None and not rank.machine.plan_is_stale
    assert rank.home() == [Reduce(generation=3)]  # slot 2 is at home again
    assert rank.machine.extras() == ()


def test_a_view_that_others_join_by_says_nothing_when_it_comes_twice() -> None:
    rank = _with_two()
    rank.feed(_voted(2), Viewed(view=BACK))

    assert rank.feed(Viewed(view=BACK)) == []
    assert not rank.machine.plan_is_stale


def test_nobody_joins_in_a_step_of_which_something_is_done() -> None:
    rank = _with_two()
    rank.feed(_voted(2), Accumulated(identity=(0, 0)))

    with pytest.raises(AssertionError, match="INV-9"):
        rank.feed(Viewed(view=BACK))


def test_nobody_joins_at_another_step() -> None:
    rank = _with_two(step=1)
    rank.feed(_voted(2))

    with pytest.raises(AssertionError, match="INV-9"):
        rank.feed(Viewed(view=BACK))


def test_a_newcomer_begins_at_the_top_of_its_step_with_what_is_its_own() -> None:
    machine = StepMachine.arrived(rank=2, layout=LAYOUT, view=BACK, step=1, microbatches=2)
    for index in range(2):
        machine.step(Accumulated(identity=(2, index)), 0.0)
    effects = machine.step(Settled(microbatches=2), 0.0)

    assert effects == [Reduce(generation=3)]
    assert machine.step_index == 1 and machine.shares() == {
        slot: ((slot, 0), (slot, 1)) for slot in range(3)
    }


def test_a_newcomer_that_is_there_in_the_next_loss_reports_its_step() -> None:
    machine = StepMachine.arrived(rank=2, layout=LAYOUT, view=BACK, step=1, microbatches=2)
    later = View(generation=4, live=(0, 2), live_ranks=(0, 2), losses=(1,))

    report = said(machine.step(Viewed(view=later), 0.0))

    assert (report.step, report.phase, report.done, report.generation) == (1, "compute", (), 4)


def test_what_a_step_with_newcomers_redoes_is_counted_from_its_members() -> None:
    rank = _with_two()
    rank.feed(_voted(2), Viewed(view=BACK))
    rank.home()

    _, committed = rank.feed(Reduced(generation=3), Voted(generation=3, counts=COUNTS))

    assert isinstance(committed, Send) and isinstance(committed.message, Committed)
    assert committed.message.redone == () and committed.message.done == ((0, 0), (0, 1))
