"""Ranks that take part again are compared with the others before anything of them counts."""

from types import SimpleNamespace
from typing import Any, Never

import pytest

from ft_collectives.communicators.errors import Superseded
from recoverrun.worker.make_up import arrival_proof
from recoverrun.worker.make_up.arrival_proof import auditor_of
from rendezvous.protocol.layout import Layout


class Left(Exception):
    """This process ends."""


def compared(rank: int, taken: dict[int, int], joined: tuple[int, ...]) -> None:
    def leave(worker: Any, reason: str) -> Never:
        raise Left(reason)

    votes = SimpleNamespace(taken=lambda generation, many: ({**taken, rank: many}, {}))
    worker: Any = SimpleNamespace(
        env=SimpleNamespace(rank=rank),
        joined=joined,
        step=7,
        runtime=SimpleNamespace(microbatches=[object()] * taken[rank]),
        protection=SimpleNamespace(vote_group=votes),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrival_proof, "leave", leave)
        arrival_proof.compare_counts(worker, 3)


def test_a_newcomer_that_takes_another_number_leaves_and_the_others_begin_the_sum_anew() -> None:
    taken = {0: 3, 1: 2, 2: 3}

    with pytest.raises(Left, match="takes another number of microbatches to step 7"):
        compared(1, taken, joined=(1,))
    with pytest.raises(Superseded):
        compared(0, taken, joined=(1,))


@pytest.mark.parametrize(
    ("taken", "joined"), [({0: 3, 1: 3, 2: 3}, (1,)), ({0: 3, 1: 3, 2: 2}, (1,))]
)
def test_where_newcomers_take_as_many_the_step_goes_on_to_its_vote(
    taken: dict[int, int], joined: tuple[int, ...]
) -> None:
    for rank in taken:
        compared(rank, taken, joined)


def test_nobody_is_proved_by_one_that_has_just_come_back() -> None:
    layout = Layout(((0, 1), (2, 3), (4, 5), (6, 7)))
    joined = layout.ranks((0, 1))

    assert {auditor_of(layout, (0, 1, 3), joined, rank) for rank in joined} == {3}
    assert auditor_of(layout, (0, 1), joined, 0) == -1
