"""The knowledge of a lost rank as its microbatches are made up, and what ends who does it."""

import random
import threading
from typing import Any

import pytest
import torch

from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.make_up.left_contexts import CONTEXTS_WAIT_S
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.replay.lost_rank import BEHIND
from recoverrun.worker.rng.streams import Streams, read_streams, restore_streams
from recoverrun.worker.step.forward_sync import Buffers
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.messages import LostContexts
from tests.unit.contexts import at
from tests.unit.survivors import LOST, MADE, STEP, Exchange, Survivor, Team, executed, left_at_top

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2

# --------------------------------------------------------------------------- what was left


def alone() -> Survivor:
    return Survivor(0, Exchange(1), lambda x: x, 1)


def test_who_needs_a_context_at_once_waits_for_it() -> None:
    team = Team()
    (survivor, _), found = team.survivors, list[Any]()

    def look() -> None:
        survivor.left.await_contexts(LOST)
        survivor.left.absorb()
        found.append(dict(survivor.executor.lost))

    waiting = threading.Thread(target=look)
    waiting.start()
    survivor.left.inherit(LostContexts(generation=2, contexts=((LOST + 1, ()),)))
    team.inherit(left_at_top())
    waiting.join(timeout=CONTEXTS_WAIT_S / 2)

    assert [set(one) for one in found] == [{LOST}]


@pytest.mark.parametrize("joining", [False, True])
def test_what_a_rank_leaves_that_was_not_proved_yet_says_nothing_of_its_slot(joining: bool) -> None:
    survivor: Any = alone()
    survivor.inherit(left_at_top(), marks={0: (1, 2)})
    survivor.left.absorb()
    known = survivor.left.contexts[LOST], survivor.left.marks[LOST]
    survivor.joining, survivor.joined = joining, (LOST,)

    survivor.inherit(at(STEP, names={"x": 77}), marks={0: (3, 4)})

    assert ((survivor.left.contexts[LOST], survivor.left.marks[LOST]) == known) is joining


def test_what_a_rank_leaves_that_was_proved_in_its_first_transaction_is_its_slots() -> None:
    survivor: Any = alone()
    survivor.inherit(left_at_top())
    survivor.left.renew([LOST])
    survivor.joining, survivor.joined = True, (LOST,)
    survivor.left.trust([LOST])

    survivor.inherit(at(STEP, names={"x": 77}), marks={0: (3, 4)})

    assert [one.names["x"] for one in survivor.left.contexts[LOST]] == [77]
    survivor.left.renew([LOST])
    survivor.inherit(at(STEP, names={"x": 78}), marks={0: (3, 4)})
    assert LOST not in survivor.left.contexts


def test_nobody_waits_for_ever_for_what_a_lost_rank_did_not_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivor = alone()
    monkeypatch.setattr("recoverrun.worker.make_up.left_contexts.CONTEXTS_WAIT_S", 0.01)

    survivor.left.await_contexts(LOST)
    survivor.left.absorb()

    assert survivor.executor.lost == {}


def test_a_context_that_is_of_no_use_is_told_once_and_before_it_is_needed() -> None:
    """The lost rank left it from the midst of its transaction, which this rank has ended."""
    team = Team()
    team.inherit(left_at_top())
    survivor = team.survivors[0]
    for step in (STEP + 1, STEP + 2):
        here = at(step, names={"x": 0})
        survivor.executor.captures.points.append(here)
        survivor.left.follow(here)

    assert len(survivor.said) == 1
    assert "left nothing from the end of the last microbatch" in survivor.said[0]
    assert survivor.guarantee.promise == "equal-count"


@pytest.mark.parametrize("after", [False, True], ids=["nothing else left", "and the end"])
def test_who_dies_as_its_work_reaches_all_is_followed_by_executing_that_once_more(
    after: bool,
) -> None:
    """Nobody makes it up: it stays in the step."""
    team = Team(audits=True)
    ends = [at(STEP, 1, "after", names={"x": 7})] if after else []
    team.inherit(left_at_top(), *ends, marks={0: MADE, 1: MADE})

    for survivor in team.survivors:
        survivor.make_up.applies(STEP)
        survivor.left.follow(survivor.keeps(at(STEP + 1, names={"x": 0})))

    assert team.promises == EXACT
    for survivor in team.survivors:
        assert survivor.executions == ([] if after else [(0, 5), (1, 6)])
        assert survivor.executor.lost[LOST].states[STEP + 1, 0, 0, 0].context.names == {"x": 7}
        assert (survivor.present, survivor.reduced) == ([], [])


@pytest.mark.parametrize(
    "marks",
    [{0: MADE}, {0: MADE, 1: (11, 13)}, {0: MADE, 1: (11, 0)}],
    ids=["not noted", "another loss", "no loss noted"],
)
def test_what_does_not_come_out_as_the_lost_rank_noted_tells_nothing(
    marks: dict[int, Mark],
) -> None:
    team = Team(audits=True)
    team.inherit(left_at_top(), marks=marks)

    for survivor in team.survivors:
        survivor.make_up.applies(STEP)
        survivor.left.follow(survivor.keeps(at(STEP + 1, names={"x": 0})))

    assert (team.promises, team.said) == (EQUAL, [BEHIND.format(rank=LOST)])


@pytest.mark.parametrize("how", ["answered", "refused", "given up", "led"])
def test_an_execution_that_cannot_be_believed_tells_nothing(how: str) -> None:
    team = Team(audits=True)
    team.inherit(left_at_top(), marks={0: MADE, 1: MADE})
    for survivor in team.survivors:
        survivor.executor.answered = how == "answered"
        survivor.refuses |= {1} if how == "refused" else set()
        survivor.ends |= {1} if how == "given up" else set()
        survivor.buffers = [{}] if how == "led" else []

    for survivor in team.survivors:
        survivor.make_up.applies(STEP)
        survivor.left.follow(survivor.keeps(at(STEP + 1, names={"x": 0})))

    assert (team.promises, team.said) == (EQUAL, [BEHIND.format(rank=LOST)])


def test_a_loop_from_which_nobody_begins_costs_no_promise() -> None:
    """Another epoch, say: the lost rank has left nothing from the top of that loop."""
    team = Team()
    team.inherit(at(STEP, 1, "after", names={"x": 8}))
    survivor = team.survivors[0]
    outer = at(STEP + 1, names={"x": 0}, loop="train.py:outer")
    here = at(STEP + 1, attempt=1, names={"x": 0})
    for one in (outer, here):
        survivor.executor.captures.points.append(one)
        survivor.left.follow(one)

    assert not survivor.said
    assert survivor.guarantee.promise == "exact-samples"
    assert survivor.executor.lost[LOST].states[here.point].context.names == {"x": 8}


def test_a_lost_rank_is_followed_from_step_to_step() -> None:
    team = Team()
    team.inherit(at(STEP, 1, "after", names={"x": 8}))
    survivor = team.survivors[0]
    here = at(STEP + 1, names={"x": 0})
    survivor.executor.captures.points.append(here)

    survivor.left.follow(here)

    known = survivor.executor.lost[LOST].states[here.point]
    assert (known.context.values, survivor.said) == ({"x": 8}, [])


def test_one_that_had_gone_on_further_is_known_by_its_own_word() -> None:
    """It was lost within the transaction that this rank is about to begin."""
    team = Team()
    team.inherit(at(STEP, 1, "after", names={"x": 8}), at(STEP + 1, names={"x": 40}))
    survivor = team.survivors[0]
    survivor.left.absorb()
    here = at(STEP + 1, names={"x": 0})
    survivor.executor.captures.points.append(here)

    survivor.left.follow(here)

    assert survivor.executor.lost[LOST].states[here.point].context.values == {"x": 40}


def test_numbers_of_a_loop_that_is_over_are_given_again() -> None:
    """This rank has gone through a loop alone; the next one has its numbers."""
    team = Team()
    team.inherit(at(STEP, 1, "after", names={"x": 8}), at(STEP + 1, attempt=1, names={"x": 3}))
    survivor = team.survivors[0]
    captures, followed = survivor.executor.captures, survivor.executor.lost
    for loop in ("train.py:alone", at(STEP).loop):
        here = at(STEP + 1, attempt=1, names={"x": 0}, loop=loop)
        captures.keep(here)
        survivor.left.follow(here)
        found = followed[LOST].states[here.point].context
        assert (found.loop, found.values) == (loop, {"x": 8 if loop == "train.py:alone" else 3})


def test_while_nothing_is_lost_nobody_is_followed() -> None:
    team = Team()
    team.inherit(left_at_top())
    survivor = team.survivors[0]
    survivor.lost = False

    survivor.left.follow(at(STEP + 1))
    survivor.make_up.tell(generation=1)

    assert survivor.executor.lost == {} and survivor.said == []


def test_streams_of_the_lost_rank_are_told_too() -> None:
    """Python's numbers decide how many of torch's a microbatch draws."""
    team = Team(program=lambda x: x)
    started: list[Streams] = []
    for survivor in team.survivors:
        survivor.executor.execute = _drawing(survivor, started)
    random.seed(8)
    torch.manual_seed(8)
    team.inherit(at(STEP, names={"x": 5}))
    lost = read_streams()
    _draw_as_told()
    expected = [lost, read_streams()]

    team.makes_up()

    assert team.promises == EXACT
    assert started[-1] == expected[1]
    assert expected[0] in started and len(started) == 3


def _draw_as_told() -> None:
    torch.rand(1 + random.randrange(100))


_one_at_a_time = threading.Lock()


def _drawing(survivor: Survivor, started: list[Streams]) -> Any:
    def execute(
        rank: int, state: KnownState, step: int, microbatch: Microbatch, before: Buffers = ()
    ) -> Executed:
        if rank == survivor.env.rank:
            return survivor.execute_own(step, microbatch)
        with _one_at_a_time:
            restore_streams(state.context.streams)
            started.append(read_streams())
            _draw_as_told()
            survivor.present.append(("own", 5))
            return executed(at(step, microbatch.index, "after", names={"x": 5}))

    return execute


# --------------------------------------------------------------------------- what ends who does it


def test_what_two_ranks_died_in_is_executed_by_nobody_and_told() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    bad = ((LOST, STEP, 1, 1, 0),)
    died = LostContexts(generation=2, contexts=(), begun=((LOST, bad), (7, bad)))
    for one in team.survivors:
        one.left.inherit(died)

    team.makes_up()

    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("fresh", 1)}
    assert team.executions == [[(0, 5)], []]
    assert team.promises == EQUAL
    (words,) = team.said
    assert words.startswith("train.py:9: ")
    assert "ranks 2 and 7 died in it" in words


def test_what_is_suspect_is_executed_where_a_copy_of_the_process_has_come_to_its_end() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    for one in team.survivors:
        one.rehearsal.suspects = {(LOST, 1)}

    team.makes_up()

    assert [one.rehearsal.held for one in team.survivors] == [[], [(LOST, 1)]]
    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}
    assert (team.promises, team.said) == (EXACT, [])


def test_what_ends_a_copy_is_executed_by_nobody_and_told() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    for one in team.survivors:
        one.rehearsal.suspects = one.rehearsal.deadly = {(LOST, 1)}

    team.makes_up()

    assert team.executions == [[(0, 5)], []]
    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("fresh", 1)}
    assert team.promises == EQUAL
    (words,) = team.said
    assert words == (
        "train.py:9: rank 2's microbatch 1 of step 3 is not executed again: "
        "a copy of this process was ended by it"
    )


def test_what_a_copy_refuses_is_not_tried_again() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    for one in team.survivors:
        one.rehearsal.suspects, one.refuses = {(LOST, 1)}, {1}

    team.makes_up()

    assert team.gradients[LOST, 1] == ("fresh", 1)
    assert team.said == ["random numbers move"]


def test_one_death_in_it_is_no_reason() -> None:
    team = Team(program=lambda x: x)
    team.inherit(left_at_top())
    for one in team.survivors:
        one.left.inherit(
            LostContexts(generation=2, contexts=(), begun=((LOST, ((LOST, STEP, 0, 1, 0),)),))
        )

    team.makes_up()

    assert team.executions == [[(0, 5)], [(1, 5)]]
    assert team.promises == EXACT


def test_what_would_end_its_executor_is_tried_once() -> None:
    """Its start was assumed wrongly: anything else would be executed again."""
    team = Team()
    team.inherit(left_at_top())
    team.survivors[1].ends = {1}

    team.makes_up()

    assert team.executions == [[(0, 5)], [(1, 5)]]
    assert team.gradients == {(LOST, 0): ("own", 5), (LOST, 1): ("fresh", 1)}
    assert team.promises == EQUAL
