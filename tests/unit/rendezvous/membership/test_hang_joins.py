"""The operations that ranks wait in, and who has joined them."""

from dataclasses import replace

from rendezvous.membership.hang_events import Still
from rendezvous.membership.hang_joins import Joins, all_shown
from rendezvous.protocol.hang_messages import Evidence, Stack
from rendezvous.protocol.progress_page import Phase, members
from tests.unit.still_ranks import mark_of


def still(
    rank: int,
    channel: int,
    number: int = 1,
    of: tuple[int, ...] = (0, 1, 2),
    joined: tuple[tuple[int, int], ...] | None = (),
    generation: int = 1,
) -> Still:
    """A rank that waits; `joined` is of its stack, None: it shows none."""
    mark = replace(
        mark_of(rank, Phase.SETTLE, 9, 1500), waits=True, channel=channel, number=number,
        generation=1, ranks=members(of),
    )  # fmt: skip
    found = Still(mark, 0.0)
    if joined is not None:
        stack = Stack(
            rank=rank, generation=generation, hang=1, look=1, digest=1, frame="", turns=False,
            within=False, joined=joined,
        )  # fmt: skip
        found.looks.shown(stack)
        seen = Evidence(
            rank=rank, incarnation=0, hang=1, look=1, stacks=True, serial=9, state="S", cpu_ms=0,
            kernel="",
        )  # fmt: skip
        found.looks.looked(seen, 1.0)
    return found


def test_all_who_wait_in_one_operation_have_joined_it() -> None:
    joins = Joins({rank: still(rank, channel=5) for rank in range(3)})

    assert joins.whole == {0, 1, 2} and not joins.crossed


def test_who_waits_in_a_later_operation_of_a_channel_has_joined_the_earlier_ones() -> None:
    joins = Joins({0: still(0, 5, 4), 1: still(1, 5, 6), 2: still(2, 5, 5)})

    assert joins.whole == {0} and not joins.crossed


def test_a_stack_tells_of_other_channels() -> None:
    waiting = {
        0: still(0, 5, 4), 1: still(1, 6, joined=((5, 4),)), 2: still(2, 6, joined=((5, 4),)),
    }  # fmt: skip

    assert Joins(waiting).whole == {0}


def test_a_stack_of_another_generation_tells_nothing() -> None:
    waiting = {
        0: still(0, 5, 4), 1: still(1, 6, joined=((5, 4),), generation=2), 2: still(2, 5, 4),
    }  # fmt: skip

    assert not Joins(waiting).whole


def test_two_that_wait_for_each_other_have_crossed() -> None:
    joins = Joins({0: still(0, 5, of=(0, 1)), 1: still(1, 6, of=(0, 1))})

    assert joins.crossed and not joins.whole


def test_so_have_three_in_a_ring() -> None:
    waiting = {
        0: still(0, 5, of=(0, 1)), 1: still(1, 6, of=(1, 2)), 2: still(2, 7, of=(0, 2)),
    }  # fmt: skip

    assert Joins(waiting).crossed


def test_who_is_waited_for_by_others_and_waits_for_nobody_else_has_not_crossed() -> None:
    waiting = {
        0: still(0, 5, of=(0, 2)), 1: still(1, 6, of=(0, 1)), 2: still(2, 5, of=(0, 2)),
    }  # fmt: skip

    assert not Joins(waiting).crossed


def test_members_that_move_or_are_not_told_are_waited_for_by_nobody() -> None:
    assert Joins({0: still(0, 5), 2: still(2, 5)}).whole == {0, 2}
    assert Joins({0: still(0, 5, of=(0, 1, 5)), 1: still(1, 6, of=())}).whole == {0, 1}


def test_whether_all_have_shown_their_stacks() -> None:
    assert all_shown({0: still(0, 5), 1: still(1, 5)})
    assert not all_shown({0: still(0, 5), 1: still(1, 5, joined=None)})
