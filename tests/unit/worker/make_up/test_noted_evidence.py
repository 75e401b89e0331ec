"""Executed again and held against what was noted: a lost rank's last work, and a survivor's own."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recoverrun.worker.context.evidence import IterationEvidence, Mark
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up import noted_evidence
from recoverrun.worker.make_up.noted_evidence import COMMITTED, own_mismatch
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace
from tests.unit.contexts import at
from tests.unit.survivors import LOST, OWN, STEP, Exchange, Survivor, Team, executed

pytestmark = pytest.mark.usefixtures("streams_put_back", "exchanging")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2
BEFORE = STEP - 1
NOTED = {0: (10, 12)}
SAID = COMMITTED.format(rank=LOST, index=0, step=BEFORE)
UNLIKE = 99


def went_before(survivor: Survivor, *entered: int, mark: int = 10) -> None:
    """It has run a transaction before this one: what has entered its model since the top."""
    points = [at(BEFORE, names={"x": 0}), at(BEFORE, 0, "after", names={"x": 0})]
    survivor.executor.captures.points[:0] = points
    evidence = SimpleNamespace(entered=list(entered or (10,)))
    top: Any = SimpleNamespace(context=points[0], evidence=evidence)
    survivor.runtime.previous = Microbatch(
        0, (MicrobatchPlace(top, 0),), noted=(((mark, 12), IterationEvidence()),)
    )


def team_after(
    *doors: int | None, before: dict[int, Mark] = NOTED, marks: dict[int, Mark] | None = None
) -> Team:
    """Survivors in whose execution this enters the model, of a rank that had noted `before`."""
    team = Team(program=lambda x: x)
    for one, door in zip(team.survivors, doors or (10, 10), strict=True):
        one.door = door
        went_before(one)
    team.inherit(at(BEFORE, names={"x": 4}), at(STEP, names={"x": 5}), before=before, marks=marks)
    return team


def looked_back(team: Team) -> list[list[tuple[int, int]]]:
    return [one.looked_back for one in team.survivors]


WHOLE = {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}
FRESH = {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}


# --------------------------------------------------------------------------- what is concluded


def test_what_was_committed_and_comes_out_as_it_was_speaks_for_what_follows() -> None:
    team = team_after()

    team.makes_up()

    assert looked_back(team) == [[(BEFORE, 4)], [(BEFORE, 4)]]
    assert (team.promises, team.said, team.gradients) == (EXACT, [], WHOLE)


def test_what_comes_out_otherwise_lowers_the_promise_and_is_made_up_with_fresh_data() -> None:
    team = team_after(UNLIKE, UNLIKE)

    team.makes_up()

    assert (team.promises, team.gradients) == (EQUAL, FRESH)
    assert team.said == [SAID]
    assert team.executions == [[], []]


def test_who_finds_it_another_one_says_so_also_where_a_start_was_assumed() -> None:
    team = team_after(10, UNLIKE)

    team.makes_up()

    assert team.promises == EQUAL


def test_one_who_finds_it_otherwise_is_enough() -> None:
    team = team_after(UNLIKE, 10)

    team.makes_up()

    assert (team.promises, team.said) == (EQUAL, [SAID])
    assert team.gradients[LOST, 0] == ("fresh", 0)


# --------------------------------------------------------------------------- when it is looked at


def test_it_is_looked_at_once() -> None:
    """Neither for each microbatch, nor in each transaction."""
    team = team_after()

    team.makes_up(((0, 1), ()))
    team.commit()
    team.makes_up(((0, 1), ()))

    assert looked_back(team) == [[(BEFORE, 4)], []]


def test_of_each_lost_rank_for_itself() -> None:
    team = team_after()
    survivor = team.survivors[0]
    asked: list[int] = []

    def disproved(session: Any, executor: Any, rank: int, marks: Any) -> str:
        asked.append(rank)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noted_evidence, "disproved", disproved)
        patch.setattr(noted_evidence, "committed_one", lambda *asked: object())
        for rank in (LOST, 1, LOST, 1):
            survivor.make_up.maker.doubts.check_last_committed(rank, STEP, {})

    assert asked == [LOST, 1]


def test_a_rank_that_has_noted_something_of_this_transaction_is_held_to_that() -> None:
    team = team_after(UNLIKE, UNLIKE, marks={0: (11, 12)})

    team.makes_up()

    assert looked_back(team) == [[], []]
    assert (team.promises, team.gradients) == (EXACT, WHOLE)


# --------------------------------------------------------------------------- not comparable


def several_forwards(survivor: Survivor) -> None:
    went_before(survivor, 10, 11, mark=11)


def no_evidence(survivor: Survivor) -> None:
    survivor.runtime.previous.top.evidence = None


def no_own_microbatch(survivor: Survivor) -> None:
    survivor.runtime.previous = None


def no_top(survivor: Survivor) -> None:
    survivor.runtime.previous.top.context = None


def no_end(survivor: Survivor) -> None:
    points = survivor.executor.captures.points
    points[:] = [one for one in points if (one.step, one.kind) != (BEFORE, "after")]


def not_replayable(survivor: Survivor) -> None:
    survivor.door = None


def noted_nothing(survivor: Survivor) -> None:
    survivor.left.marks[LOST] = {}


def noted_another(survivor: Survivor) -> None:
    survivor.left.marks[LOST] = {(BEFORE - 1, 0): (10, 12), (BEFORE, 1): (10, 12)}


def left_nothing(survivor: Survivor) -> None:
    """Of the transaction before: where it stood then cannot be told."""
    del survivor.left.contexts[LOST][0]


@pytest.mark.parametrize(
    "lacks",
    [
        several_forwards, no_evidence, no_own_microbatch, no_top, no_end, not_replayable,
        noted_nothing, noted_another, left_nothing,
    ],
)  # fmt: skip
def test_what_cannot_be_compared_says_nothing(lacks: Callable[[Survivor], None]) -> None:
    team = team_after(UNLIKE, UNLIKE)
    for one in team.survivors:
        lacks(one)

    team.makes_up()

    assert (team.promises, team.said, team.gradients) == (EXACT, [], WHOLE)


def test_what_entered_in_later_microbatches_of_the_iteration_is_no_matter() -> None:
    team = team_after(UNLIKE, UNLIKE)
    for one in team.survivors:
        went_before(one, 10, 20)

    team.makes_up()

    assert team.promises == EQUAL


# --------------------------------------------------------------------------- put back


def stops(survivor: Survivor, error: Exception) -> None:
    def execute(*what: Any) -> Executed:
        assert survivor.executor.only_inputs and survivor.present == []
        survivor.present.append(("own", "a part of a backward"))
        raise error

    survivor.executor.execute = execute


ENDS: dict[str, Callable[[Survivor], None]] = {
    "as it was": lambda survivor: None,
    "otherwise": lambda survivor: setattr(survivor, "door", UNLIKE),
    "not replayable": lambda survivor: stops(survivor, NotReplayable("numbers move")),
    "an error": lambda survivor: stops(survivor, ValueError("no data")),
}


@pytest.mark.parametrize("end", ENDS)
def test_gradients_are_put_back_whatever_happens(end: str) -> None:
    survivor = team_after().survivors[0]
    survivor.left.absorb()
    survivor.present = own = [("own", 7)]
    ENDS[end](survivor)

    try:
        session: Any = survivor
        marks = survivor.left.marks[LOST]
        said = noted_evidence.disproved(session, session.executor, LOST, marks)
    except ValueError:
        said = "an error"

    assert said == {"otherwise": SAID, "an error": "an error"}.get(end, "")
    assert survivor.present is own == [("own", 7)]
    assert survivor.executor.only_inputs is False


# --------------------------------------------------------------------------- a survivor's own

INPUTS, NUMBERS, LOSS = "had other inputs", "drew other random numbers", "had another loss"


def survivor_with(own: Mark = OWN, *, drew: bool = False) -> Survivor:
    """Its own microbatch, executed once more, has this mark."""
    survivor = Survivor(1, Exchange(1), lambda x: x, microbatches=2)
    survivor.own, survivor.drew = own, drew
    return survivor


def why_not(survivor: Survivor, threads: int = 1) -> str:
    session: Any = survivor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        return own_mismatch(session, session.executor)


def test_one_that_comes_out_as_it_was_can_be_trusted() -> None:
    survivor = survivor_with()

    assert (why_not(survivor), survivor.recalled) == ("", [(STEP, 0)])


@pytest.mark.parametrize(
    ("own", "drew", "what"),
    [
        ((99, 22), False, INPUTS),
        ((21, 22), True, NUMBERS),
        ((21, 99), False, LOSS),
        ((99, 99), True, INPUTS),
        ((21, 99), True, NUMBERS),
    ],
)
def test_the_first_thing_in_which_it_is_another_one_is_said(
    own: Mark, drew: bool, what: str
) -> None:
    place = {"loop": "train.py:9", "rank": 1, "step": STEP}

    assert why_not(survivor_with(own, drew=drew)) == noted_evidence.OWN.format(**place, what=what)


@pytest.mark.parametrize("where", ["several threads", "an accelerator"])
def test_a_loss_whose_bits_may_differ_says_nothing_and_all_else_does(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = 4 if where == "several threads" else 1
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: threads == 1)

    assert why_not(survivor_with((21, 99)), threads) == ""
    assert INPUTS in why_not(survivor_with((99, 99)), threads)
    assert NUMBERS in why_not(survivor_with((21, 99), drew=True), threads)


def answers(survivor: Survivor, *, answered: bool = False, reached: bool = True) -> None:
    """Others are asked in it; or it comes no further than to the model's door."""

    def execute(*what: Any) -> Executed:
        survivor.executor.answered = answered
        return executed(survivor.executor.captures.points[1] if reached else None, (99, 99))

    survivor.executor.execute = execute


def unended(survivor: Survivor) -> None:
    points = survivor.executor.captures.points
    points[:] = [one for one in points if one.kind != "after"]


SILENT: dict[str, Callable[[Survivor], None]] = {
    "no microbatch": lambda one: one.runtime.microbatches.clear(),
    "no top": lambda one: setattr(one.runtime.microbatches[0].top, "context", None),
    "no end": unended,
    "not replayable": lambda one: raises(one, NotReplayable("numbers move")),
    "given up": lambda one: raises(one, GivenUp("it would end this process")),
    "asks others": lambda one: answers(one, answered=True),
    "only to the door": lambda one: answers(one, reached=False),
}


def raises(survivor: Survivor, error: Exception) -> None:
    def execute(*what: Any) -> Executed:
        survivor.present.append(("own", "a part of a backward"))
        raise error

    survivor.executor.execute = execute


@pytest.mark.parametrize("lacks", SILENT)
def test_one_that_cannot_be_compared_says_nothing(lacks: str) -> None:
    survivor = survivor_with((99, 99))
    SILENT[lacks](survivor)

    assert why_not(survivor) == ""


def test_what_asks_others_is_compared_where_they_are_not_asked() -> None:
    """The same execution as above, but for that."""
    survivor = survivor_with((99, 99))
    answers(survivor)

    assert INPUTS in why_not(survivor)


@pytest.mark.parametrize("error", [None, NotReplayable("numbers move"), ValueError("no data")])
def test_own_gradients_are_what_they_were_before_it(error: Exception | None) -> None:
    survivor = survivor_with()
    survivor.present = own = [("own", 7)]
    if error is not None:
        raises(survivor, error)

    with pytest.raises(ValueError) if isinstance(error, ValueError) else nullcontext():
        why_not(survivor)

    assert survivor.present is own == [("own", 7)]
