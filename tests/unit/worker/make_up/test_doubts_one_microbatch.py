"""Doubts about one microbatch: it is executed again with our own values for what is unknown."""

import pytest

from recoverrun.worker.context.slot_context import Key, host
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.tracking.microbatches import Microbatch
from tests.unit.survivors import LOST
from tests.unit.worker.make_up.test_doubts import (
    COUNT,
    EQUAL,
    MARK,
    OTHERWISE,
    TOLD,
    Differs,
    One,
    Tries,
    Unknowing,
    always,
    never,
    with_y,
)

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

ALL: tuple[Key, ...] = ("y", "z", COUNT)


def _differ_in_the_second(tries: Tries) -> None:
    """`y` matters only in the second microbatch."""
    execute = tries._execute

    def executes(rank: int, state: KnownState, step: int, microbatch: Microbatch) -> Executed:
        tries.differs = with_y if microbatch.index == 1 else never
        return execute(rank, state, step, microbatch)

    tries._execute = executes


@pytest.mark.parametrize(
    ("unknown", "asked"),
    [
        (("y", "y"), [True, False]),
        (("y", "yz", "yz"), [True, True, False]),
        (("yz", "y", "z"), [True, False, False]),
        (("y", "z", "yz", "y"), [True, True, False, False]),
        (("", "y", ""), [False, True, False]),
    ],
    ids=str,
)
def test_it_is_asked_whenever_more_is_unknown_than_was_asked_about(
    unknown: tuple[str, ...], asked: list[bool]
) -> None:
    one, found = One(), list[list[str]]()
    for keys in unknown:
        found.append(one.asks(*keys))
        one.survivor.make_up.maker.doubts.committed()

    assert found == [[keys] if now else [] for keys, now in zip(unknown, asked, strict=True)]


def test_that_is_another_question_of_each_lost_rank() -> None:
    one, found = One(), list[list[str]]()
    for rank in (LOST, LOST + 1, LOST, LOST + 1):
        found.append(one.asks("y", rank=rank))
        one.survivor.make_up.maker.doubts.committed()

    assert found == [["y"], ["y"], [], []]


@pytest.mark.parametrize("shares", [((0,), (1,)), ((0, 1), ())], ids=str)
def test_it_is_asked_of_each_microbatch_of_the_transaction_and_again_with_each(
    shares: tuple[tuple[int, ...], ...],
) -> None:
    team = Unknowing("y", microbatches=2)
    for tries in team.tries:
        _differ_in_the_second(tries)

    team.makes_up(shares)

    assert team.promises == EQUAL


@pytest.mark.parametrize("how", OTHERWISE)
def test_whatever_comes_out_otherwise_is_a_guess_and_does_not_count(how: str) -> None:
    one, told = One(how=how), TOLD.format("y differs", "s")

    assert one.guesses("y", differs=with_y)[1] == told
    with pytest.raises(NotReplayable, match=told):
        one.asks("y", differs=with_y)


@pytest.mark.parametrize(
    ("differs", "told"),
    [
        (with_y, TOLD.format("y differs", "s")),
        (lambda ours: "c" in ours, TOLD.format("opt.c differs", "s")),
        (lambda ours: "y" in ours or "z" in ours, TOLD.format("y, z differ", "")),
        (lambda ours: "yz" in ours, TOLD.format("opt.c, y, z differ", "")),
    ],
    ids=["one", "an attribute", "two", "two together"],
)
def test_those_are_to_blame_that_make_a_difference_alone_or_else_all(
    differs: Differs, told: str
) -> None:
    one = One()

    (first, *each), said = one.guesses(*ALL, differs=differs)

    assert (first, sorted(each)) == ("cyz", ["c", "y", "z"]), "all of them, and each alone"
    assert said == told
    with pytest.raises(NotReplayable, match=told):
        one.asks(*ALL, differs=differs)


def test_where_all_of_it_together_makes_no_difference_nothing_is_executed_one_by_one() -> None:
    one = One()

    assert one.guesses(*ALL) == (["cyz"], "")
    assert one.asks(*ALL) == ["cyz"]


NOT_OURS: tuple[Key, ...] = (MARK, ("opt", "w#"), host("python"), "elsewhere")


@pytest.mark.parametrize("unknown", [(), NOT_OURS], ids=["nothing", "marks, streams, others"])
def test_where_no_value_of_our_own_is_unknown_nothing_is_executed_again(
    unknown: tuple[Key, ...],
) -> None:
    one = One()

    assert one.guesses(*unknown, differs=always) == ([], "")
    assert one.asks(*unknown, differs=always) == []


def test_marks_and_what_we_do_not_have_stay_as_they_were_left() -> None:
    one = One()

    assert one.guesses(*NOT_OURS, "y") == (["y"], "")
    assert one.asks(*NOT_OURS, "y") == ["y"]


def test_shard_mates_do_not_ask_before_an_audit() -> None:
    assert One(shards=2).asks("y", "z", differs=always) == []
