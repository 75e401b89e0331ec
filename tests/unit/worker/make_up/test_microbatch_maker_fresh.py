"""Making up with fresh data, and with own microbatches where no fresh data can be had."""

import itertools

import pytest

from recoverrun.worker.make_up.make_up import ENDLESS
from recoverrun.worker.make_up.microbatch_maker import ONCE_MORE, REPEATS
from recoverrun.worker.replay.taken_items import TakenForGood
from rendezvous.protocol.layout import Layout
from tests.unit.contexts import at
from tests.unit.survivors import (
    LOST,
    STEP,
    Team,
    left_at_top,
)
from tests.unit.worker.make_up.test_make_up import EQUAL, EXACT

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

# --------------------------------------------------------------------------- fresh data


def test_where_nothing_was_left_all_is_of_fresh_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recoverrun.worker.make_up.left_contexts.CONTEXTS_WAIT_S", 0.01)
    team = Team()

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}
    assert team.promises == EQUAL
    assert all("left no context that can be used" in words for words in team.said)


def test_a_context_that_came_too_early_is_told_with_its_transaction() -> None:
    team = Team()
    team.inherit(at(STEP - 2, names={"x": 5}))

    team.makes_up()

    assert team.promises == EQUAL
    assert all(f"is of step {STEP - 2}, and what its script" in word for word in team.said)


def test_what_comes_after_the_promise_was_lowered_is_of_fresh_data_at_once() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top(), marks={0: (99, 99)})
    team.makes_up()
    for survivor in team.survivors:
        survivor.make_up.end_step(STEP)
        survivor.reduced.clear()
        survivor.executions.clear()

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}
    assert team.executions == [[], []] and len(team.said) == 1


# --------------------------------------------------------------------------- no fresh data

HOME = ("own", "home")
IN_SHARDS = Layout(((0, 3), (1, 4), (LOST, 5)))
BARREN = "train.py:9: executed as rank 1, the script's code raised StopIteration()"


def barren(*, survivors: tuple[int, ...] = (0, 1), microbatches: int = 2) -> Team:
    """Nothing was left of the lost rank, and to these survivors fresh data give nothing."""
    team = Team(microbatches=microbatches)
    for number, survivor in enumerate(team.survivors):
        survivor.guarantee.weaken("the deputy failed")
        survivor.present = [HOME]
        survivor.barren = BARREN if number in survivors else ""
    return team


@pytest.mark.parametrize("microbatches", [2, 5])
def test_where_no_fresh_data_can_be_had_the_mean_of_own_microbatches_stands_in(
    microbatches: int,
) -> None:
    team = barren(microbatches=microbatches)

    team.makes_up()

    share = ([HOME], microbatches)  # of what is its own: nothing of what was tried
    assert team.gradients == {
        (LOST, 0): ("share", (*share, True)),  # the slot's first carries what was there before
        (LOST, 1): ("share", (*share, False)),
    }


@pytest.mark.parametrize("survivors", [(0,), (1,), (0, 1)])
def test_the_transaction_has_all_its_microbatches_whoever_has_no_fresh_data(
    survivors: tuple[int, ...],
) -> None:
    team = barren(survivors=survivors, microbatches=4)

    team.makes_up(((0, 2), (1, 3)))

    kinds = {identity: kind for identity, (kind, _) in team.gradients.items()}
    assert kinds == {(LOST, n): "share" if n % 2 in survivors else "fresh" for n in range(4)}


@pytest.mark.parametrize("survivors", [(1,), (0, 1)])
def test_who_has_shard_mates_computes_its_own_once_more_with_them(
    survivors: tuple[int, ...],
) -> None:
    """They are in a forward pass that needs it."""
    team = barren(survivors=survivors)
    for survivor in team.survivors:
        survivor.layout = IN_SHARDS

    team.makes_up()

    kinds = {n: ("own", "once more") if n in survivors else ("fresh", n) for n in range(2)}
    assert team.gradients == {(LOST, n): kinds[n] for n in range(2)}
    for n in survivors:
        survivor = team.survivors[n]
        assert survivor.recalled == [(STEP, n)] and survivor.present == [HOME]
        assert survivor.noticed == [ONCE_MORE.format(LOST, STEP, BARREN)]


def test_who_would_take_items_for_good_computes_nothing_once_more() -> None:
    """Its own microbatch would take one, as other data would; so do its mates, and none waits."""
    team = barren()
    for survivor in team.survivors:
        survivor.layout, survivor.barren_by = IN_SHARDS, TakenForGood

    team.makes_up()

    assert {kind for kind, _ in team.gradients.values()} == {"share"}
    assert [one.recalled for one in team.survivors] == [[], []]


def test_own_gradients_are_what_they_were_before_fresh_data_gave_nothing() -> None:
    team = barren()

    team.makes_up()

    assert [one.present for one in team.survivors] == [[HOME]] * 2


def test_what_stands_in_for_fresh_data_is_said_once_by_each_whom_it_concerns() -> None:
    team = barren(survivors=(1,), microbatches=4)

    for _ in range(3):
        team.makes_up(((0, 2), (1, 3)))
        for survivor in team.survivors:
            survivor.make_up.end_step(STEP)
            survivor.reduced.clear()
            survivor.step += 1

    has, lacks = team.survivors
    assert (has.noticed, lacks.noticed) == ([], [REPEATS.format(LOST, STEP, BARREN)])


def test_what_was_executed_exactly_and_came_out_otherwise_is_made_up_from_own_ones_too() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top(), marks={1: (99, 99)})
    for survivor in team.survivors:
        survivor.present, survivor.barren = [HOME], BARREN

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("share", ([HOME], 2, False))}
    assert team.promises == EQUAL and len(team.said) == 1


BEHAVIOURS = ("right", "cannot be executed", "not as noted", "promise was lowered")


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("shares", [((0,), (1,)), ((1,), (0,)), ((0, 1), ()), ((), (1, 0))])
def test_each_identity_has_one_gradient_whatever_comes_in_between(
    shares: tuple[tuple[int, ...], ...], moves: bool
) -> None:
    """It is the slot's own, or the promise is lowered everywhere, and somebody says why."""
    for course in itertools.product(BEHAVIOURS, repeat=2):
        team = Team(program=lambda x: x + moves)
        bad = {n for n, one in enumerate(course) if one == "not as noted"}
        team.inherit(left_at_top(), marks=dict.fromkeys(bad, (99, 99)))
        for survivor, one in zip(team.survivors, course, strict=True):
            survivor.refuses = {
                n for n, behaviour in enumerate(course) if behaviour == "cannot be executed"
            }
            if one == "promise was lowered":
                survivor.guarantee.weaken("the deputy failed")

        team.makes_up(shares)

        assert team.gradients.keys() == {(LOST, 0), (LOST, 1)}, course
        right = {(LOST, n): ("own", 5 + n * moves) for n in range(2)}
        for identity, (kind, x) in team.gradients.items():
            assert kind == "fresh" or (kind, x) == right[identity], course
        if all(one == "right" for one in course):
            assert team.gradients == right and team.promises == EXACT, course
        else:
            assert team.promises == EQUAL and team.said, course


def test_a_start_that_nobody_can_tell_is_of_fresh_data_and_told() -> None:
    team = Team()
    team.inherit(left_at_top())
    silent = team.survivors[0].make_up
    silent._positions.end_of = lambda made: None  # type: ignore[method-assign]

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("fresh", 1)}
    assert team.said == [ENDLESS.format(rank=LOST, index=1, step=STEP)]
    assert team.promises == EQUAL
