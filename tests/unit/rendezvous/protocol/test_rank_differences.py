"""Sentences that name the ranks on either side."""

from rendezvous.protocol.rank_differences import (
    by_answer,
    diverged,
    missed,
    unequal,
    uneven_newcomers,
)


def test_those_who_say_the_same_are_named_together_and_most_of_them_first() -> None:
    assert by_answer({0: "a", 1: "b", 2: "b"}) == "ranks 1, 2: b; rank 0: a"
    assert by_answer({0: "a", 1: "a"}) == ""


def test_unequal_microbatches_are_told_with_their_ranks() -> None:
    assert unequal(5, {0: 2, 1: 1}).endswith("rank 0: 2 microbatches; rank 1: 1 microbatch")


def test_a_rank_that_waits_and_a_script_that_has_ended_are_both_named() -> None:
    assert missed(12, [1], {0: 12}) == (
        "rank 1 waits for gradients in step 12 (the first is 0), "
        "but the script of rank 0 has ended after 12 steps"
    )


def test_those_leave_that_came_back_and_say_otherwise_than_those_that_were_never_lost() -> None:
    said = {0: 3, 1: 2, 2: 3}

    assert diverged(said, {1: 5}) == [1]
    assert diverged(said, {1: 5, 2: 7}) == [1], "who came back and does as the first is right"
    assert diverged(said, {0: 5, 2: 7}) == [0, 2], "one was never lost"
    assert diverged(said, {}) == []
    assert diverged(said, {2: 7}) == [], "those that were never lost have parted"
    assert diverged({0: 3, 1: 3}, {1: 5}) == []
    assert diverged({}, {1: 5}) == []


def test_where_all_were_lost_before_those_are_believed_that_came_back_first() -> None:
    said = {0: 3, 1: 2, 2: 3}

    assert diverged(said, {0: 5, 1: 7, 2: 9}) == [1]
    assert diverged(said, {0: 5, 1: 4, 2: 5}) == [0, 2]
    assert diverged(said, {0: 5, 1: 7, 2: 5}) == [1], "two came together, and agree"
    assert diverged(said, {0: 5, 1: 5, 2: 7}) == [], "two came together, and have parted"
    assert diverged(said, {0: 5, 1: 5, 2: 5}) == []


def test_who_takes_another_number_is_named() -> None:
    assert uneven_newcomers(7, {0: 3, 1: 2, 2: 3}, [1]) == (
        "rank 1 came back and takes another number of microbatches to step 7 than the "
        "others: ranks 0, 2: 3 microbatches; rank 1: 2 microbatches"
    )
