"""Making up: each identity once, with what its slot would have had for as long as that is known."""

import random

import pytest

from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.context.slot_context import AFTER
from recoverrun.worker.make_up.noted_evidence import OTHERWISE, OWN, UNEQUAL
from recoverrun.worker.replay.lost_rank import BEHIND, host
from rendezvous.protocol.messages import LostContexts
from rendezvous.protocol.shared_memory import MARKS_BYTES
from tests.unit.contexts import at
from tests.unit.survivors import (
    LOST,
    STEP,
    Team,
    left_at_top,
    mark_of,
)

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2


# --------------------------------------------------------------------------- told, not inferred


def test_each_executes_its_share_once_where_the_assumed_start_was_right() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}
    assert team.executions == [[(0, 5)], [(1, 5)]]
    assert (team.promises, team.said) == (EXACT, [])


def test_a_start_that_was_assumed_wrongly_is_made_good() -> None:
    """Only the lost rank's code knows what becomes of its `x`: ours rests."""
    team = Team()
    team.inherit(left_at_top())

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 6)}
    assert team.executions == [[(0, 5)], [(1, 5), (1, 6)]]
    assert (team.promises, team.said) == (EXACT, [])


def test_who_makes_up_all_of_a_slot_assumes_nothing() -> None:
    team = Team()
    team.inherit(left_at_top())

    team.makes_up(((0, 1), ()))

    assert team.executions == [[(0, 5), (1, 6)], []]
    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 6)}


@pytest.mark.parametrize(
    "shares", [((0, 2), (1, 3)), ((3, 1), (2, 0)), ((0, 3), (1, 2)), ((1, 2, 3), (0,))]
)
def test_wrong_starts_are_made_good_one_after_the_other(
    shares: tuple[tuple[int, ...], ...],
) -> None:
    team = Team(microbatches=4)
    team.inherit(left_at_top())

    team.makes_up(shares)

    assert team.gradients == {(LOST, n): ("own", 5 + n) for n in range(4)}
    assert team.promises == EXACT


def one_knows_the_start(microbatches: int) -> Team:
    """The second survivor has ended a transaction since the lost rank left what it has of it."""
    team = Team(microbatches=microbatches)
    knows, lacks = team.survivors
    before = [at(STEP - 2, names={"x": 0}), at(STEP - 1, 0, "after", names={"x": 0})]
    lacks.executor.captures.points[:0] = before
    knows.inherit(left_at_top())
    lacks.inherit(at(STEP - 2, names={"x": 3}))
    return team


@pytest.mark.parametrize("shares", [((0,), (1,)), ((0, 2), (1, 3)), ((0, 3), (2, 1))])
def test_who_lacks_a_start_waits_for_those_who_execute_what_is_before(
    shares: tuple[tuple[int, ...], ...],
) -> None:
    count = sum(map(len, shares))
    team = one_knows_the_start(count)

    team.makes_up(shares)

    assert team.gradients == {(LOST, n): ("own", 5 + n) for n in range(count)}
    assert (team.promises, team.said) == (EXACT, [])


def test_who_lacks_the_start_of_all_gives_up_at_once() -> None:
    team = one_knows_the_start(2)

    team.makes_up(((1,), (0,)))

    assert team.gradients == {(LOST, 0): ("fresh", 1), (LOST, 1): ("fresh", 0)}
    assert (team.promises, team.said) == (EQUAL, [BEHIND.format(rank=LOST)])
    assert team.executions == [[(1, 5)], []]


def test_nobody_waits_for_ever_for_a_start() -> None:
    """The words about the microbatches before are of no use here."""
    team = one_knows_the_start(2)
    lacks = team.survivors[1]
    lacks.make_up.maker.learn = lambda *what, **how: None  # type: ignore[method-assign]

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("fresh", 1)}
    assert (team.promises, team.said) == (EQUAL, [BEHIND.format(rank=LOST)])


def test_all_know_where_the_lost_rank_stands_afterwards() -> None:
    team = Team()
    team.inherit(left_at_top())
    team.makes_up()

    for survivor in team.survivors:
        captures = survivor.executor.captures
        captures.points.append(at(STEP + 1, names={"x": 0}))
        survivor.make_up.end_step(STEP)
        state = survivor.executor.lost[LOST].at((STEP + 1, 0, 0, 0), captures.points)
        assert (state.context.values, state.assumed) == ({"x": 7}, False)

    """A rank that holds more than others, as rank 0 does that counts for all, speaks for itself."""
    team = Team(program=lambda x: x)
    team.survivors[1].executor.influence.matters = lambda key, value: False
    team.inherit(left_at_top())

    team.makes_up()

    assert team.executions == [[(0, 5)], [(1, 5)]]
    assert (team.promises, team.said) == (EXACT, [])
    for survivor in team.survivors:
        assert not survivor.executor.lost[LOST].states[STEP, 1, AFTER, 0].assumed


def test_a_wrong_start_of_which_nothing_is_used_is_no_matter() -> None:
    team = Team()
    for survivor in team.survivors:
        survivor.executor.influence.matters = lambda key, value: False
    team.inherit(left_at_top())

    team.makes_up()

    assert team.executions == [[(0, 5)], [(1, 5)]]
    assert team.promises == EXACT


def test_what_was_made_up_before_a_second_loss_is_added_once() -> None:
    team = Team()
    team.inherit(left_at_top())
    team.makes_up()

    team.makes_up(((), ()))

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 6)}


def test_gradients_of_one_s_own_are_none_of_it() -> None:
    team = Team()
    team.inherit(left_at_top())
    for survivor in team.survivors:
        survivor.present = [("own", "home")]

    team.makes_up()

    assert [one.present for one in team.survivors] == [[("own", "home")]] * 2


def test_what_nobody_knew_of_the_lost_rank_is_not_known_after_its_microbatch_either() -> None:
    """Its `y` moved between the steps, as its stream of Python did, and no code has set them."""
    team = Team(program=lambda x: x, microbatches=1)
    after = at(STEP - 1, 0, "after", names={"x": 0, "y": 1})
    random.seed(9)
    for survivor in team.survivors:
        survivor.executor.influence.matters = lambda key, value: False
        captures = survivor.executor.captures
        captures.points = [after, at(STEP, names={"x": 0, "y": 2}), *captures.points[1:]]
        survivor.runtime.microbatches[0].top.context = captures.points[1]
        captures.points.append(at(STEP + 1, names={"x": 0, "y": 2}))
    random.seed(8)
    team.inherit(at(STEP - 1, 0, "after", names={"x": 5, "y": 7}))

    team.makes_up(((0,), ()))

    for survivor in team.survivors:
        points, lost = survivor.executor.captures.points, survivor.executor.lost[LOST]
        for point in ((STEP, 0, 1, 0), (STEP + 1, 0, 0, 0)):
            assert lost.at(point, points).unknown == {"y", host("python")}
    assert team.promises == EXACT


# --------------------------------------------------------------------------- proved by marks


@pytest.mark.parametrize("known", [(11, 12), (11, 0), (10, 0), (0, 12), (0, 0)])
def test_what_the_lost_rank_noted_is_the_proof(known: Mark) -> None:
    team = Team()
    team.inherit(left_at_top(), marks={0: known, 1: known})

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 6)}
    assert team.promises == EXACT


@pytest.mark.parametrize(
    ("known", "what"),
    [
        ((99, 12), UNEQUAL[0].format(rank=LOST)),
        ((99, 0), UNEQUAL[0].format(rank=LOST)),
        ((10, 12), UNEQUAL[0].format(rank=LOST)),  # its backward began after one forward
        ((11, 99), UNEQUAL[1]),
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_not_as_the_lost_rank_noted_is_of_fresh_data_and_told(
    index: int, known: Mark, what: str
) -> None:
    team = Team()
    team.inherit(left_at_top(), marks={index: known})

    team.makes_up()

    first = ("own", 5) if index else ("fresh", 0)
    assert team.gradients == {(LOST, 0): first, (LOST, 1): ("fresh", 1)}, "which follows from it"
    why = OTHERWISE.format(rank=LOST, index=index, step=STEP, what=what)
    assert (team.promises, team.said) == (EQUAL, [why])


def test_a_mark_of_another_microbatch_proves_nothing() -> None:
    team = Team()
    ring = mark_of(STEP - 1, 0, (99, 99)).ljust(MARKS_BYTES, b"\0")
    team.inherit(left_at_top())
    for one in team.survivors:
        one.left.inherit(LostContexts(generation=2, contexts=(), marks=((LOST, ring),)))

    team.makes_up()

    assert team.promises == EXACT


# --------------------------------------------------------------------------- one's own once more

FORGOTTEN = (99, 22)


def forgetful(*survivors: int) -> Team:
    """Survivors whose own work comes out otherwise."""
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    for rank in survivors:
        team.survivors[rank].own = FORGOTTEN
    return team


def recalled(team: Team) -> list[list[tuple[int, int]]]:
    return [one.recalled for one in team.survivors]


def not_itself(rank: int) -> str:
    what = "had other inputs"
    return OWN.format(loop="train.py:9", rank=rank, step=STEP, what=what)


def test_who_executes_for_a_lost_rank_executes_its_own_first_microbatch_once() -> None:
    """Neither for each microbatch, nor in each transaction."""
    team = forgetful()

    for _ in range(3):
        team.makes_up(((0, 1), ()))
        team.commit()

    assert recalled(team) == [[(STEP, 0)], []]


def test_once_for_each_lost_rank() -> None:
    survivor = forgetful().survivors[0]

    for rank in (LOST, 1, LOST, 1):
        survivor.make_up.maker.doubts.check_own_microbatch(rank)

    assert survivor.recalled == [(STEP, 0)] * 2


def test_who_is_not_what_it_was_executes_nothing_for_others_and_says_so() -> None:
    team = forgetful(0, 1)

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}
    assert (team.promises, team.said) == (EQUAL, [not_itself(0), not_itself(1)])
    assert team.executions == [[], []]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_not_what_it_was_lowers_the_promise_of_all(rank: int) -> None:
    team = forgetful(rank)

    team.makes_up()

    assert (team.promises, team.said) == (EQUAL, [not_itself(rank)])
    assert team.gradients[LOST, rank] == ("fresh", rank)
    assert team.executions[rank] == []


def test_who_was_not_what_it_was_is_not_asked_again_for_the_same_lost_rank() -> None:
    team = forgetful(0)

    team.makes_up(((0, 1), ()))

    assert recalled(team) == [[(STEP, 0)], []] and team.executions == [[], []]
