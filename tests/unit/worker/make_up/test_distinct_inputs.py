"""A lost rank's microbatch with the inputs of another rank's is not believed."""

from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.step.vote import Tally
from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.make_up.distinct_inputs import DOUBLED, LEAST, DistinctInputs
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace
from tests.unit.survivors import LOST, MADE, OWN, STEP, Team, left_at_top

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2
UNLIKE, ALIKE = {0: 7, 1: 8, LOST: 9}, {0: 7, 1: 8, LOST: 7}


def microbatch(index: int = 0, *, loop: str = "train.py:9", line: int = 12, skip: int = 0) -> Any:
    top: Any = SimpleNamespace(loop=SimpleNamespace(id=loop))
    return Microbatch(index, (MicrobatchPlace(top, skip, line),))


def noted(*votes: list[int]) -> DistinctInputs:
    distinct = DistinctInputs()
    for digests in votes:
        distinct.note(microbatch(), digests)
    return distinct


# --------------------------------------------------------------------------- what is known


@pytest.mark.parametrize(
    ("votes", "twin"),
    [
        ([[7, 8, 9]] * LEAST, 1),
        ([[7, 8, 9]] * (LEAST - 1), None),  # too few to expect anything
        ([[7, 8, 9]] * LEAST + [[7, 8, 7]], None),  # ranks may share what they read
        ([[7, 8, 7]] + [[7, 8, 9]] * LEAST, None),
        ([[7]] * LEAST, None),  # only this rank's are known
    ],
)
def test_the_same_inputs_are_a_twin_s_where_ranks_never_had_them(
    votes: list[list[int]], twin: int | None
) -> None:
    assert noted(*votes).twin(microbatch(), 5, {0: [4], 1: [5]}) == twin


@pytest.mark.parametrize("others", [{0: [4], 1: [6]}, {0: [4, 5], 1: []}, {}])
def test_inputs_of_nobody_s_microbatch_of_that_index_are_its_own(others: dict[int, Any]) -> None:
    assert noted(*[[7, 8, 9]] * LEAST).twin(microbatch(), 5, others) is None


def test_each_index_is_compared_with_its_own() -> None:
    distinct = noted(*[[7, 8, 9]] * LEAST)

    assert distinct.twin(microbatch(1), 5, {0: [4, 5]}) == 0


def test_without_a_digest_nothing_is_known() -> None:
    assert noted(*[[7, 8, 9]] * LEAST).twin(microbatch(), 0, {0: [0]}) is None


@pytest.mark.parametrize("other", [{"loop": "train.py:30"}, {"line": 13}, {"skip": 1}])
def test_each_kind_of_microbatch_is_known_by_itself(other: dict[str, Any]) -> None:
    """All ranks may train a generator on the same noise, and a critic on their own data."""
    distinct = noted(*[[7, 8, 9]] * LEAST)
    distinct.note(microbatch(**other), [7, 7, 7])

    assert distinct.twin(microbatch(**other), 5, {0: [5]}) is None
    assert distinct.twin(microbatch(), 5, {0: [5]}) == 0


# --------------------------------------------------------------------------- what comes of it


def team_after(votes: list[dict[int, int]], **marks: dict[int, Mark]) -> Team:
    """A team that has voted, and then lost a rank whose microbatches come out as a survivor's."""
    team = Team(program=lambda x: x)
    for one in team.survivors:
        one.lost = False
        for inputs in votes:
            one.make_up.hear(Tally(counts=(), said=(), inputs=inputs))
        one.lost, one.mark = True, OWN
    team.inherit(left_at_top(), **marks)
    team.makes_up()
    return team


def test_a_microbatch_with_a_survivor_s_inputs_is_replaced_and_told() -> None:
    team = team_after([UNLIKE] * LEAST)

    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}
    assert team.promises == EQUAL
    assert team.said[0] == DOUBLED.format(rank=LOST, index=0, step=STEP, other=0)


@pytest.mark.parametrize("votes", [[ALIKE] * LEAST, [UNLIKE] * (LEAST - 1), [{}] * LEAST])
def test_it_is_believed_where_that_was_not_to_be_expected(votes: list[dict[int, int]]) -> None:
    team = team_after(votes)

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}
    assert (team.promises, team.said) == (EXACT, [])


def test_it_is_believed_if_the_lost_rank_itself_had_noted_these_inputs() -> None:
    team = team_after([UNLIKE] * LEAST, marks={0: (OWN[0], 0), 1: (OWN[0], 0)})

    assert (team.promises, team.said) == (EXACT, [])


def test_the_inputs_of_the_first_microbatch_are_told() -> None:
    (first, _) = Team().survivors

    assert first.make_up.inputs == OWN[0] != MADE[0]
    first.runtime.microbatches.clear()
    assert first.make_up.inputs == 0
