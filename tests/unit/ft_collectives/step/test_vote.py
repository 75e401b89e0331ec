"""Digests in a vote: do all members have the same, whatever the way in which ballots travel."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ft_collectives.communicators.channel import Communicator
from ft_collectives.step import vote
from ft_collectives.step.vote import Tally, VoteGroup

WITHIN_S = 20.0
MOST = (1 << 2 * vote.HALF_BITS) - 1


class Group:
    """One member's end of a group of threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, told: dict[int, Any]) -> None:
        self.rank, self.barrier, self.told = rank, barrier, told
        self.ways: list[str] = []

    def _all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        self.told[self.rank] = mine.clone()
        self.barrier.wait(WITHIN_S)
        heard = [self.told[rank] for rank in sorted(self.told)]
        self.barrier.wait(WITHIN_S)
        return heard

    def alltoall_base(self, out: torch.Tensor, mine: torch.Tensor, *how: Any) -> None:
        self.ways.append("exchanged")
        ballots = [one.chunk(self.barrier.parties)[self.rank] for one in self._all(mine)]
        out.copy_(torch.cat(ballots))

    def allreduce(self, tensors: list[torch.Tensor], how: Any) -> None:
        self.ways.append("summed")
        (mine,) = tensors
        mine.copy_(torch.stack(self._all(mine)).sum(0))


def tallies(
    digests: list[int],
    many: int = 2,
    knowing: tuple[int, ...] = (),
    inputs: tuple[int, ...] = (),
) -> tuple[list[Tally], set[str]]:
    """The outcome of each member's vote, and how ballots travelled."""
    members, told = tuple(range(len(digests))), dict[int, Any]()
    barrier = threading.Barrier(len(digests))
    groups = [Group(rank, barrier, told) for rank in members]

    def of(group: Group) -> Tally:
        fabric: Any = SimpleNamespace(
            open=lambda name, ranks, aligned: name,
            meet=lambda channel: Communicator(1, members, group),
            launch=lambda channel, generation, launch: launch(group),
            memory=SimpleNamespace(hold=lambda staged: None, release=lambda staged: None),
            finish=lambda pending, generation: None,
        )  # fmt: skip
        ballot, digest = [1] * many, digests[group.rank]
        vote_group = VoteGroup(fabric, members)
        return vote_group.tally(
            1, ballot, lambda: None, microbatches=many, word=1, digest=digest,
            invited=group.rank in knowing,
            inputs=inputs[group.rank] if inputs else 0,
        )  # fmt: skip

    with ThreadPoolExecutor(len(groups)) as pool:
        found = list(pool.map(of, groups))
    return found, {way for group in groups for way in group.ways}


@pytest.mark.parametrize("way", ["exchanged", "summed"])
@pytest.mark.parametrize(
    ("digests", "alike"),
    [
        ([0, 0, 0], True),
        ([MOST, MOST, MOST], True),
        ([5 << 12 | 7] * 3, True),
        ([5, 5, 6], False),
        ([5 << 12, 5 << 12, 6 << 12], False),  # in the upper half alone
        ([4, 5, 6], False),  # their sum is that of equal ones
        ([5 << 12 | 7, 7 << 12 | 5, 6 << 12 | 6], False),
        ([0, 0, MOST], False),
    ],
)
def test_digests_are_alike_if_all_are_the_same(
    digests: list[int], alike: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "summed":
        monkeypatch.setattr(vote, "EXCHANGED", 0)

    found, ways = tallies(digests)

    assert ways == {way}
    assert found == [Tally(counts=(3, 3), said=(0, 3, 0, 0), alike=alike)] * 3


@pytest.mark.parametrize("other", [5, 6])
def test_digests_are_compared_where_ballots_need_more_room_at_first(other: int) -> None:
    found, _ = tallies([5, other], many=vote.ROOM)

    assert [one.alike for one in found] == [other == 5] * 2
    assert found[0].counts == (2,) * vote.ROOM


@pytest.mark.parametrize("many", [2, vote.ROOM])
@pytest.mark.parametrize("knowing", [(), (1,), (0, 1, 2)])
def test_a_vote_counts_who_knows_that_lost_ranks_are_ready(
    knowing: tuple[int, ...], many: int
) -> None:
    found, _ = tallies([0, 0, 0], many, knowing)

    assert [one.invited for one in found] == [len(knowing)] * 3
    assert found[0].counts == (3,) * many


@pytest.mark.parametrize("many", [2, vote.ROOM])
def test_all_hear_whose_inputs_are_which(many: int) -> None:
    found, _ = tallies([5, 5, 5], many, inputs=(7, 0, vote.INPUTS_MASK))

    assert [one.inputs for one in found] == [{0: 7, 2: vote.INPUTS_MASK}] * 3
    assert [one.alike for one in found] == [True] * 3
    assert found[0].counts == (3,) * many


def test_inputs_are_nobody_s_where_ballots_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vote, "EXCHANGED", 0)

    found, _ = tallies([5, 5], inputs=(7, vote.INPUTS_MASK))

    assert [one.inputs for one in found] == [{}] * 2
    assert found[0].counts == (2, 2)


def test_whoever_is_alone_is_alike() -> None:
    fabric: Any = SimpleNamespace(
        open=lambda name, ranks, aligned: name, meet=lambda channel: Communicator(1, (0,), None)
    )

    tally = VoteGroup(fabric, [0]).tally(1, [1], lambda: None, microbatches=1, digest=MOST)

    assert tally == Tally(counts=(1,), said=(1, 0, 0, 0), alike=True)
