"""Votes of the members of a small world (see `worlds`)."""

from typing import Any

from ft_collectives.step.vote import EXCHANGED, Tally, VoteGroup
from tests.numerics.worlds import Member


def votes(member: Member) -> list[Any]:
    """Ballots that are exchanged, too long for that, or of other lengths, and a minimum."""
    fabric = member.protect()
    vote_group = VoteGroup(fabric, range(member.size))
    long = EXCHANGED // member.size + 1
    short = vote_group.count(1, [member.rank, 1], lambda: None)
    summed = vote_group.count(1, [member.rank] * long, lambda: None)
    unequal = vote_group.count(1, [1] * (1 + member.rank), lambda: None)
    return [short, set(summed), unequal, vote_group.least(1, 5 - member.rank)]


def tallies(member: Member) -> list[Any]:
    """Equal and unequal numbers of microbatches, in ballots of any length, and who took which."""
    fabric = member.protect()
    vote_group = VoteGroup(fabric, range(member.size))

    def vote(many: int, word: int) -> Tally:
        ballot = [int(member.rank == slot) for slot in range(member.size) for _ in range(many)]
        return vote_group.tally(1, ballot, lambda: None, microbatches=many, word=word)

    many = EXCHANGED // member.size
    return [
        vote(2, 1),
        vote(40, member.rank),  # more than there is room for at first
        vote(3, 0),
        vote(1 + 40 * member.rank, 0),  # of different lengths
        vote(many, 0),  # summed
        vote(many + member.rank // 2, 3),
        vote_group.taken(1, 1 + 40 * member.rank),
    ]
