"""Votes over real gloo: any number of microbatches, also unequal ones."""

from ft_collectives.step.vote import EXCHANGED
from tests.numerics import vote_scripts, worlds


def test_votes_count_whatever_the_length_of_the_ballots() -> None:
    results = worlds.run(vote_scripts.votes, size=3).results

    assert results[0] == [(3, 3), {3}, (3,), 3]
    assert results[2][2] == (3, 2, 1)  # who disagrees about the length finds out


def test_votes_name_who_takes_unequally_many_microbatches_whatever_their_number() -> None:
    results = worlds.run(vote_scripts.tallies, size=3).results

    assert results[0] == results[1] == results[2]
    *tallies, taken = results[0]
    few, more, fewer, unequal, summed, differ = tallies
    assert (few.counts, few.said, few.unequal) == ((1,) * 6, (0, 3, 0, 0), False)
    assert (more.counts, more.said, more.unequal) == ((1,) * 120, (1, 1, 1, 0), False)
    assert (fewer.counts, fewer.unequal) == ((1,) * 9, False)
    assert (unequal.counts, unequal.unequal) == ((), True)
    assert set(summed.counts) == {1} and len(summed.counts) == 3 * (EXCHANGED // 3)
    assert (differ.counts, differ.unequal) == ((), True)
    assert taken == ({0: 1, 1: 41, 2: 81}, {0: 0, 1: 0, 2: 0})
