"""The member that gives a newcomer its state, and how long that may be waited for."""

from rendezvous.protocol.donors import donor_in, donor_of, may_tell
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.views import View

LAYOUT = Layout(((0, 1), (2, 3), (4, 5), (6, 7)))


def view(live: tuple[int, ...], *joined: int) -> View:
    return View(
        generation=3,
        live=live,
        live_ranks=tuple(sorted(LAYOUT.ranks(live))),
        losses=(),
        joined=tuple(sorted(LAYOUT.ranks(joined))),
    )


def test_a_donor_lives_and_holds_the_same_part_of_the_model() -> None:
    for live in ((0,), (1, 3), (0, 1, 3)):
        for rank in LAYOUT.ranks((2,)):
            slot, shard = LAYOUT.place(donor_of(LAYOUT, live, rank))
            assert slot in live
            assert shard == LAYOUT.place(rank)[1]


def test_the_shards_of_a_newcomer_have_different_donors_where_there_are_several() -> None:
    donors = {LAYOUT.slot(donor_of(LAYOUT, (0, 1, 3), rank)) for rank in (4, 5)}

    assert len(donors) == 2


def test_both_sides_find_the_same_donor() -> None:
    """A member goes by the view before, a newcomer by the one that has it, perhaps with others."""
    for before, joined in (((0,), (2,)), ((1, 3), (0, 2)), ((0, 1, 3), (2,))):
        after = view(tuple(sorted((*before, *joined))), *joined)
        for rank in after.joined:
            assert donor_in(LAYOUT, after, rank) == donor_of(LAYOUT, before, rank)


def test_a_word_may_come_until_a_view_is_without_the_donor() -> None:
    donor = donor_in(LAYOUT, view((0, 1, 2), 2), 4)

    assert LAYOUT.slot(donor) == 0
    assert may_tell(donor, view((0, 1, 2), 2))
    assert may_tell(donor, view((0, 2)))
    assert not may_tell(donor, view((1, 2)))
