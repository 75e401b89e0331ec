"""All survivors audit: who agrees keeps the promise, and any difference costs it."""

from collections.abc import Callable
from typing import Any

import pytest

from recoverrun.worker.make_up import audits as audits_module
from recoverrun.worker.make_up.audits import (
    NOT_ITSELF,
    UNLIKE,
    WHAT,
)
from recoverrun.worker.make_up.noted_evidence import OWN
from tests.unit.survivors import LOST, STEP, Team, left_at_top
from tests.unit.worker.make_up.test_audits import GENERATION, Rank, alone

pytestmark = pytest.mark.usefixtures("streams_put_back")

EXACT, EQUAL = ["exact-samples"] * 2, ["equal-count"] * 2


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else says anything."""

    def gather(fabric: Any, channel: Any, generation: int, mine: Any) -> dict[int, Any]:
        assert generation == GENERATION
        return {0: mine}

    monkeypatch.setattr(audits_module, "gather", gather)


# --------------------------------------------------------------------------- all survivors


def team_of(
    change: Callable[[Team], None],
    after: int,
    shares: tuple[tuple[int, ...], ...] = ((0,), (1,)),
) -> Team:
    """One rank of three was lost; transactions later, what the others execute changes."""
    team = Team(program=lambda x: x, survivors=len(shares), audits=True)
    team.inherit(left_at_top())
    team.makes_up(shares)
    for number in range(1, 5):
        team.commit()
        if number == after:
            change(team)
        for one in team.survivors:
            one.executions.clear()
        team.makes_up(shares)
        if not all(one.guarantee.exact for one in team.survivors):
            break
    return team


def otherwise(rank: int) -> Callable[[Team], None]:
    def change(team: Team) -> None:
        team.survivors[rank].mark = (99, 12)

    return change


def not_itself(rank: int) -> Callable[[Team], None]:
    """A rank whose own work comes out otherwise; what it executes for others does not."""

    def change(team: Team) -> None:
        team.survivors[rank].own = (99, 22)

    return change


def refusing(team: Team) -> None:
    team.survivors[1].refuses = {0}


WHOLE = {(LOST, 0): ("own", 5), (LOST, 1): ("own", 5)}


exchanging = pytest.mark.usefixtures("exchanging")


CHANGES = pytest.mark.parametrize(("after", "audited", "since"), [(1, 1, 0), (2, 2, 1), (3, 4, 2)])


@exchanging
def test_survivors_who_agree_keep_their_promise() -> None:
    team = team_of(lambda team: None, 1)

    assert (team.promises, team.said) == (EXACT, [])
    assert team.executions == [[(0, 5)], [(1, 5), (0, 5)]], "in an audited transaction"
    assert team.gradients == WHOLE, "what was executed twice is in the sum once"


@exchanging
@pytest.mark.parametrize("rank", [0, 1], ids=["the executor", "the auditor"])
@CHANGES
def test_an_execution_that_comes_out_otherwise_costs_the_promise_in_the_next_audit(
    after: int, audited: int, since: int, rank: int
) -> None:
    team = team_of(otherwise(rank), after)

    assert team.promises == EQUAL and team.survivors[0].step == STEP + audited
    assert team.said == [
        UNLIKE.format(
            rank=LOST, index=0, step=STEP + audited, by="0 and 1", what=WHAT[0], since=STEP + since
        )
    ]


@exchanging
def test_what_nobody_can_believe_is_made_up_with_fresh_data() -> None:
    """The transaction has all its microbatches, each of them once."""
    team = team_of(otherwise(1), 1)

    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("own", 5)}


@exchanging
def test_who_cannot_execute_what_another_one_has_costs_no_promise() -> None:
    team = team_of(refusing, 1)

    assert (team.promises, team.said, team.gradients) == (EXACT, [], WHOLE)


@exchanging
def test_nothing_is_audited_unless_all_find_that_it_is_due() -> None:
    def unaware(team: Team) -> None:
        team.survivors[0].machine = None

    team = team_of(unaware, 1)

    assert team.executions == [[(0, 5)], [(1, 5)]]


# --------------------------------------------------------------------------- each of itself


def said_of(rank: int, audited: int, since: int) -> str:
    what = {"rank": rank, "step": STEP + audited, "what": "had other inputs"}
    return NOT_ITSELF.format(why=OWN.format(loop="train.py:9", **what), since=STEP + since)


@exchanging
def test_each_survivor_executes_its_own_once_more_in_every_audit_and_in_no_other_transaction() -> (
    None
):
    team = team_of(lambda team: None, 1)

    first, *audits = [(STEP + number, 0) for number in (0, 1, 2, 4)]
    assert [one.recalled for one in team.survivors] == [[first, *audits]] * 2


@exchanging
@pytest.mark.parametrize("rank", [0, 1], ids=["the executor", "the auditor"])
@CHANGES
def test_one_that_is_not_what_it_was_costs_the_promise_in_the_next_audit(
    after: int, audited: int, since: int, rank: int
) -> None:
    team = team_of(not_itself(rank), after)

    assert team.promises == EQUAL and team.survivors[0].step == STEP + audited
    assert team.said == [said_of(rank, audited, since)]


@exchanging
@pytest.mark.parametrize("rank", [0, 1])
def test_then_nothing_that_anybody_made_up_is_believed(rank: int) -> None:
    team = team_of(not_itself(rank), 1)

    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}


@exchanging
@CHANGES
def test_a_survivor_that_is_alone_audits_itself(after: int, audited: int, since: int) -> None:
    team = team_of(not_itself(0), after, ((0, 1),))

    assert team.promises == EQUAL[:1] and team.said == [said_of(0, audited, since)]
    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 0)}


@exchanging
def test_a_survivor_that_is_alone_and_what_it_was_keeps_its_promise() -> None:
    team = team_of(lambda team: None, 1, ((0, 1),))

    assert (team.promises, team.said, team.gradients) == (EXACT[:1], [], WHOLE)
    assert team.executions == [[(0, 5), (1, 5)]], "nothing of the lost rank's once more"


# --------------------------------------------------------------------------- what are guesses

GUESS = "y differs between ranks and moves between steps"


@alone
def test_a_rank_that_has_only_guessed_believes_nothing_that_was_made_up() -> None:
    rank = Rank()
    rank.guess = GUESS

    audited, why = rank.run({(LOST, 0): 0, (LOST, 1): 1})

    assert audited == {(LOST, 0), (LOST, 1)}
    assert why == NOT_ITSELF.format(why=GUESS, since=0)


@alone
@pytest.mark.parametrize("own", ["", "moves"])
@pytest.mark.parametrize("slot", [0, 1, 4], ids=["the executor", "the auditor", "another one"])
def test_each_rank_is_asked_for_guesses_once_it_has_executed_its_own(
    slot: int, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came of that: shard mates do both together."""
    rank, before = Rank(slot, (0, 1, 4)), []

    def own_mismatch(session: Any, executor: Any) -> str:
        before.append(rank.guesses)
        return own

    monkeypatch.setattr(audits_module, "own_mismatch", own_mismatch)

    _, why = rank.run({(LOST, 0): 0})

    assert (before, rank.guesses) == ([0], 1)
    assert why == (NOT_ITSELF.format(why=own, since=0) if own else "")


@exchanging
@pytest.mark.parametrize("rank", [0, 1], ids=["the executor", "the auditor"])
@CHANGES
def test_a_guess_of_one_survivor_costs_the_promise_of_all_in_the_next_audit(
    after: int, audited: int, since: int, rank: int
) -> None:
    def change(team: Team) -> None:
        team.survivors[rank].make_up.maker.guessed = lambda: GUESS  # type: ignore[method-assign]

    team = team_of(change, after)

    assert team.promises == EQUAL and team.survivors[0].step == STEP + audited
    assert team.said == [NOT_ITSELF.format(why=GUESS, since=STEP + since)]
    assert team.gradients == {(LOST, 0): ("fresh", 0), (LOST, 1): ("fresh", 1)}
