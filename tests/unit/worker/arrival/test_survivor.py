"""Which survivor gives a newcomer its place, and which one proves it."""

from recoverrun.worker.arrival.survivor import donor_of
from recoverrun.worker.make_up.arrival_proof import auditor_of
from rendezvous.protocol.layout import Layout

LAYOUT = Layout(((0, 1), (2, 3), (4, 5), (6, 7)))


def test_a_donor_lives_and_holds_the_same_part_of_the_model() -> None:
    for live in ((0,), (1, 3), (0, 1, 3)):
        for rank in LAYOUT.ranks((2,)):
            slot, shard = LAYOUT.place(donor_of(LAYOUT, live, rank))
            assert slot in live
            assert shard == LAYOUT.place(rank)[1]


def test_the_shards_of_a_newcomer_have_different_donors_where_there_are_several() -> None:
    donors = {LAYOUT.slot(donor_of(LAYOUT, (0, 1, 3), rank)) for rank in (4, 5)}

    assert len(donors) == 2


def test_nobody_is_proved_by_one_that_has_just_come_back() -> None:
    joined = LAYOUT.ranks((0, 1))

    assert {auditor_of(LAYOUT, (0, 1, 3), joined, rank) for rank in joined} == {3}
    assert auditor_of(LAYOUT, (0, 1), joined, 0) == -1
