"""The state of a lost rank at our points: what is told, what is followed, what cannot be known."""

from typing import Any

import pytest

from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.known_state import differing, differing_words, merged
from recoverrun.worker.replay.lost_rank import LostRank, lost_rank
from tests.unit.contexts import at

pytestmark = pytest.mark.usefixtures("streams_put_back")


def lost_at(theirs: Context, mine: Context, **more: Any) -> LostRank:
    lost = LostRank(1, apart=False, **more)
    lost.learn(theirs, mine)
    return lost


def course(*, names: list[dict[str, Any]] | None = None, **more: Any) -> list[Context]:
    """Our points of one transaction of two microbatches, and the top of the next one."""
    wanted = names or [{} for _ in range(5)]
    where: list[Any] = [(3, 0), (3, 0, "after"), (3, 1), (3, 1, "after"), (4, 0)]
    return [at(*point, names=values, **more) for point, values in zip(where, wanted, strict=True)]


# --------------------------------------------------------------------------- values


def _zero(key: object, now: object) -> bool:
    return now == 0


@pytest.mark.parametrize(
    ("before", "after", "theirs", "expected"),
    [
        (1, 1, 1, 1),  # common, and stays
        (1, 2, 1, 2),  # common, and moved as ours did
        (1, 1, 7, 7),  # the rank's own, and stays
    ],
)
def test_a_value_that_is_told(before: int, after: int, theirs: int, expected: int) -> None:
    assert merged({"x": before}, {"x": after}, {"x": theirs}) == ({"x": expected}, set())


def test_what_differs_and_moves_is_not_known() -> None:
    assert merged({"x": 1}, {"x": 2}, {"x": 7}) == ({"x": 7}, {"x"})


def test_what_has_become_what_the_other_rank_had_is_not_known() -> None:
    """Roles go round among ranks: that one has moved on, too."""
    assert merged({"x": 1}, {"x": 2}, {"x": 2}) == ({"x": 2}, {"x"})


def test_what_begins_anew_for_all_is_known_again() -> None:
    """A count of tokens that each step sets to nothing."""
    assert merged({"x": 40}, {"x": 0}, {"x": 37}, begins=_zero) == ({"x": 0}, set())
    assert merged({"x": 40}, {"x": 5}, {"x": 37}, begins=_zero) == ({"x": 37}, {"x"})


@pytest.mark.parametrize(
    ("before", "after", "theirs", "known"),
    [
        (1, 2, 1, False),  # the same just now, but who knows
        (1, 1, 1, True),
        (1, 1, 7, True),
        (1, 2, 2, False),
        (1, 2, 7, False),
    ],
)
def test_what_ranks_do_not_have_in_common_is_not_known_once_it_moves(
    before: int, after: int, theirs: int, known: bool
) -> None:
    values, apart = merged({"x": before}, {"x": after}, {"x": theirs}, alone={"x"})

    assert values == {"x": theirs} and apart == (set() if known else {"x"})


def test_what_ranks_do_not_have_in_common_begins_anew_for_all() -> None:
    assert merged({"x": 4}, {"x": 0}, {"x": 4}, begins=_zero, alone={"x"}) == ({"x": 0}, set())


def test_what_was_not_there_yet_is_ours_and_what_is_gone_is_gone() -> None:
    assert merged({"old": 1}, {"new": 2}, {"old": 7}) == ({"new": 2}, set())


def test_values_compare_bit_for_bit() -> None:
    values, apart = merged({"x": True}, {"x": True}, {"x": 1})

    assert values["x"] == 1 and type(values["x"]) is int and not apart


def test_a_rank_keeps_what_is_its_own_from_step_to_step() -> None:
    own = [at(3, 0, "after", names={"rank": 0, "step": 3}), at(4, names={"rank": 0, "step": 4})]
    lost = lost_at(at(3, 0, "after", names={"rank": 1, "step": 3}), own[0])

    state = lost.at(own[1].point, own)

    assert state.context.values == {"rank": 1, "step": 4}
    assert not state.unknown and not state.assumed


def test_what_it_lost_sight_of_is_known_again_once_it_is_told() -> None:
    own = course(names=[{"seen": n} for n in range(5)])
    lost = lost_at(at(3, names={"seen": 50}), own[0])
    assert lost.at(own[2].point, own).unknown == {"seen"}

    lost.learn(at(3, 1, "after", names={"seen": 3}), own[3])

    assert lost.at(own[4].point, own).context.values == {"seen": 4}
    assert not lost.at(own[4].point, own).unknown


def test_what_is_not_known_stays_so_while_it_rests() -> None:
    """It moved between two steps, and then an iteration trained nothing."""
    own = [at(3, 0, "after", names={"x": 1}), at(4, names={"x": 2}), at(4, 0, "top", 1)]
    own[2].names["x"] = 2
    lost = lost_at(at(3, 0, "after", names={"x": 7}), own[0])

    assert [lost.at(one.point, own).unknown for one in own] == [set(), {"x"}, {"x"}]


@pytest.mark.parametrize("stale", [2, 3])
def test_what_is_not_known_is_not_taken_for_ours_as_it_happens_to_be_the_same(stale: int) -> None:
    values = [{"x": 1}, {"x": 0}, {"x": 2}, {"x": 3}]
    own = [at(3, 0, "after", names=values[0])]
    own += [at(4, 0, "top", n, names=one) for n, one in enumerate(values[1:])]
    lost = lost_at(at(3, 0, "after", names={"x": stale}), own[0])

    assert [lost.at(one.point, own).unknown for one in own[1:]] == [{"x"}] * 3


def test_what_another_loop_shows_is_not_forgotten() -> None:
    own = [at(3, 0, "after", names={"rank": 0, "x": 1}), at(4, names={"x": 1}, loop="train.py:1")]
    lost = lost_at(at(3, 0, "after", names={"rank": 1, "x": 1}), own[0])

    assert lost.at(own[1].point, own).context.values == {"rank": 1, "x": 1}


def test_the_point_that_is_asked_for_is_ours() -> None:
    own = course()
    lost = lost_at(at(3), own[0])

    for one in own[:3]:
        assert lost.at(one.point, own).context.point == one.point


# --------------------------------------------------------------------------- assumed starts


def test_a_start_behind_somebody_else_s_microbatch_is_assumed() -> None:
    own = course()
    lost = lost_at(at(3), own[0])

    states = [lost.at(one.point, own) for one in own[:4]]

    assert [one.assumed for one in states] == [False, True, True, True]


def test_what_its_executor_tells_is_no_longer_assumed() -> None:
    own = course(names=[{"x": 0} for _ in range(5)])
    lost = lost_at(at(3, names={"x": 5}), own[0])
    assert lost.at(own[2].point, own).context.values == {"x": 5}

    lost.learn(at(3, 0, "after", names={"x": 6}), own[1])

    state = lost.at(own[2].point, own)
    assert (state.context.values, state.assumed) == ({"x": 6}, False)


def test_one_s_own_guess_stays_one() -> None:
    """A rank that executes a microbatch from an assumed start knows its end as little."""
    own = course()
    lost = lost_at(at(3), own[0])

    lost.learn(at(3, 1, "after"), own[3], assumed=True)

    assert lost.at(own[3].point, own).assumed


def test_a_transaction_is_not_begun_on_an_assumption() -> None:
    own = course()
    lost = lost_at(at(3), own[0])

    with pytest.raises(NotReplayable, match="left nothing from the end of the last microbatch"):
        lost.at(own[4].point, own)


def test_where_both_never_were_nothing_is_known() -> None:
    own = course()

    with pytest.raises(NotReplayable, match="left no context at a point that this rank has passed"):
        LostRank(1, apart=False).at(own[0].point, own)
    with pytest.raises(NotReplayable, match="kept nothing of its microbatch"):
        lost_at(at(3), own[0]).at((3, 7, 0, 0), own[:1])


def test_variables_of_a_loop_to_which_it_never_came_are_not_known() -> None:
    own = [at(3, 0, "after"), at(4, loop="tune.py:9")]
    lost = lost_at(at(3, 0, "after"), own[0])

    for _ in range(2):
        with pytest.raises(NotReplayable, match="never come to the loop at tune.py:9"):
            lost.at(own[1].point, own)


@pytest.mark.parametrize("region", [False, True])
def test_points_that_are_over_are_forgotten_but_for_the_last(region: bool) -> None:
    """And but for that from which the next microbatch, too, is executed again."""
    own = course()
    lost = lost_at(at(3), own[0])
    lost.learn(at(3, 1, "after"), own[3])

    lost.forget((4, 0, 0, 0), {own[0].point} if region else ())

    assert list(lost.states) == [own[0].point] * region + [own[3].point]
    assert lost.at(own[4].point, own).context.point == own[4].point


# --------------------------------------------------------------------------- who was lost


def test_a_rank_is_known_by_the_last_point_where_both_were() -> None:
    own = {one.point: one for one in (at(2), at(3, 0, "after"))}
    left = [at(3, 0, "after", names={"x": 2}), at(2, names={"x": 1}), at(4, names={"x": 3})]

    lost = lost_rank(1, left, own, apart=True)

    assert lost is not None
    assert max(lost.states) == (3, 0, 1, 0)
    assert lost.states[3, 0, 1, 0].context.values == {"x": 2}
    assert lost.made == frozenset(), "it left no iterator over a loader"


def test_a_point_of_another_loop_is_no_point_where_both_were() -> None:
    own = {one.point: one for one in (at(3),)}

    assert lost_rank(1, [at(3, loop="tune.py:9"), at(9)], own, apart=True) is None
    assert lost_rank(1, [], own, apart=True) is None


# --------------------------------------------------------------------------- words


def test_marks_of_large_data_are_among_what_differs() -> None:
    mine = at(3, names={"data#": "one", "rank": 0, "x": 1})
    theirs = at(3, names={"data#": "two", "rank": 1, "x": 1})

    assert differing(theirs, mine) == {"data#": "two", "rank": 1}


def test_the_sentence_names_the_first_few() -> None:
    assert (
        differing_words(["x"], "between steps") == "x differs between ranks and moves between steps"
    )
    assert (
        differing_words(["x", ("meter", "value"), "y", "z"], "between steps")
        == "x, meter.value, y and more differ between ranks and move between steps"
    )


# --------------------------------------------------------------------------- lost again at once


def test_who_came_back_and_was_lost_in_its_first_step_stands_where_it_left_that() -> None:
    """The step was committed with what it had given, so nobody has executed it."""
    own = course(names=[{"x": 1}, {"x": 2}, {"x": 2}, {"x": 3}, {"x": 3}])
    lost = lost_at(at(3, 0, names={"x": 7}), own[0])
    left = [at(3, 0, names={"x": 7}), at(3, 1, "after", names={"x": 9})]
    with pytest.raises(NotReplayable, match="left nothing from the end"):
        lost_at(at(3, 0, names={"x": 7}), own[0]).at(own[-1].point, own)

    lost.end_as_left(left, {one.point: one for one in own})

    assert lost.at(own[-1].point, own).context.names["x"] == 9


def test_what_it_left_is_old_once_later_microbatches_were_executed_for_it() -> None:
    own = course()
    lost = lost_at(at(3, 0, names={"x": 7}), own[0])
    lost.learn(at(3, 1, "after", names={"x": 8}), own[3])
    lost.forget((3, 1, 0, 0), ())

    lost.end_as_left([at(3, 0, "after", names={"x": 9})], {one.point: one for one in own})

    assert lost.at(own[-1].point, own).context.names["x"] == 8


def test_what_it_left_counts_less_than_what_its_executor_tells() -> None:
    own = course()
    lost = lost_at(at(3, 0, names={"x": 7}), own[0])
    lost.learn(at(3, 1, "after", names={"x": 8}), own[3])

    lost.end_as_left([at(3, 1, "after", names={"x": 9})], {one.point: one for one in own})

    assert lost.at(own[3].point, own).context.names["x"] == 8
