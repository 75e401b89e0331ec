"""Ranks that have taken unequally many microbatches to one reduction."""

import pytest

from ft_collectives.step.step_events import (
    Apply,
    Compare,
    Compared,
    Conceded,
    Differ,
    Reduced,
    Send,
    Uneven,
    Viewed,
    Voted,
    Withdraw,
)
from rendezvous.protocol.messages import Committed
from tests.unit.one_rank import SECOND, Rank, redo, said


def unequal() -> Rank:
    """The vote has shown that members have taken unequally many microbatches."""
    rank = Rank()
    rank.home()
    voted = Voted(generation=1, counts=(), unequal=True)
    assert rank.feed(Reduced(generation=1), voted) == [Compare(generation=1)]
    return rank


def test_where_all_replicas_are_there_unequally_many_microbatches_are_torchs_step() -> None:
    rank = unequal()

    (uneven,) = rank.feed(Compared(generation=1, taken={0: 2, 1: 1, 2: 2}))
    apply, committed = rank.feed(Conceded(generation=1, total=5))

    assert isinstance(uneven, Uneven) and uneven.total == 5
    assert "rank 1: 1 microbatch" in uneven.reason
    assert apply == Apply(step=0)
    assert isinstance(committed, Send) and isinstance(committed.message, Committed)
    assert committed.message.total == 5
    assert rank.feed(Conceded(generation=1, total=5)) == []


def test_a_loss_before_it_is_said_that_ranks_differ_comes_first() -> None:
    rank = unequal()
    rank.feed(Compared(generation=1, taken={0: 2, 1: 1, 2: 2}))

    rank.feed(Viewed(view=SECOND))

    assert rank.feed(Conceded(generation=1, total=5)) == []
    assert rank.machine.step_index == 0


def test_where_a_replica_is_lost_they_are_named_and_nothing_is_applied() -> None:
    rank = Rank()
    rank.feed(Viewed(view=SECOND))
    rank.home()
    rank.feed(redo(2, (0, 0), (0, 1)), Reduced(generation=2))
    rank.feed(Voted(generation=2, counts=(), unequal=True))

    (effect,) = rank.feed(Compared(generation=2, taken={0: 2, 1: 1}))

    assert isinstance(effect, Differ)
    assert "rank 0: 2 microbatches; rank 1: 1 microbatch" in effect.reason
    assert rank.machine.step_index == 0


def test_what_ranks_have_taken_counts_no_more_once_the_members_have_changed() -> None:
    rank = Rank()
    rank.home()
    rank.feed(Reduced(generation=1), Viewed(view=SECOND))

    assert rank.feed(Voted(generation=1, counts=(), unequal=True)) == []
    assert rank.feed(Compared(generation=1, taken={0: 2, 1: 1})) == []


def test_who_came_back_and_has_taken_another_number_leaves_and_the_others_wait() -> None:
    stays, leaves = unequal(), unequal()

    here = stays.feed(Compared(generation=1, taken={0: 2, 1: 1, 2: 2}, since={1: 5}))
    (there,) = leaves.feed(Compared(generation=1, taken={0: 1, 1: 2, 2: 2}, since={0: 5}))

    assert here == []
    assert isinstance(there, Withdraw)
    assert there.reason == (
        "rank 0 came back and takes another number of microbatches to step 0 than the "
        "others: ranks 1, 2: 2 microbatches; rank 0: 1 microbatch"
    )


def test_where_all_were_lost_before_who_came_back_last_leaves() -> None:
    """Nobody is left that never was: it was the end of the job."""
    taken, since = {0: 2, 1: 1, 2: 2}, {0: 3, 1: 5, 2: 7}
    other_taken, other_since = {0: 1, 1: 2, 2: 2}, {0: 5, 1: 3, 2: 7}

    assert unequal().feed(Compared(generation=1, taken=taken, since=since)) == []
    (there,) = unequal().feed(Compared(generation=1, taken=other_taken, since=other_since))

    assert isinstance(there, Withdraw)


@pytest.mark.parametrize("compared", [False, True])
def test_a_sum_with_unequally_many_microbatches_is_never_reported_as_whole(compared: bool) -> None:
    rank = unequal()
    if compared:
        rank.feed(Compared(generation=1, taken={0: 2, 1: 1, 2: 2}, since={1: 5}))

    report = said(rank.feed(Viewed(view=SECOND)))

    assert (report.phase, report.reduced) == ("settle", 0)
