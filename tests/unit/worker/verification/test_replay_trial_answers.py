"""Answers of other ranks to the script's collectives, as a trial makes them up."""

from typing import Any, cast

import pytest

from recoverrun.worker.context.evidence import Mark
from recoverrun.worker.replay.executed import Executed, Misled
from recoverrun.worker.replay.poison import HIGH, LOW, NOT_A_NUMBER
from tests.unit.worker.verification.test_proofs import Play
from tests.unit.worker.verification.test_replay_trial import DOOR, MARK, done, trial

pytestmark = pytest.mark.usefixtures("streams_put_back")


class Asks:
    """An executor whose script hears `talked` from other ranks, and takes no `refused` for it."""

    def __init__(self, talked: bool, refused: tuple[int, ...], misled: tuple[int, ...]) -> None:
        self.talked, self.answer = talked, LOW
        self.answers: list[int] = []
        self.marks: dict[int, Mark] = {}
        self._refused, self._misled = refused, misled

    def execute(self, *asked: object) -> Executed:
        self.answers.append(self.answer)
        if self.answer in self._refused:
            raise Misled("it ends")
        mark = self.marks.get(self.answer, MARK)
        return done(door=DOOR + (self.answer in self._misled), mark=mark)


@pytest.mark.parametrize(
    ("talked", "refused", "misled", "asked", "right"),
    [
        (False, (), (), [NOT_A_NUMBER], True),
        (True, (), (), [NOT_A_NUMBER, LOW, HIGH], True),
        (True, (NOT_A_NUMBER,), (), [NOT_A_NUMBER, LOW, HIGH], True),
        (True, (NOT_A_NUMBER,), (HIGH,), [NOT_A_NUMBER, LOW, HIGH], False),
        (True, (), (NOT_A_NUMBER,), [NOT_A_NUMBER], False),
        (True, (), (LOW,), [NOT_A_NUMBER, LOW, HIGH], False),
    ],
)
def test_each_answer_of_other_ranks_has_to_give_the_same(
    talked: bool,
    refused: tuple[int, ...],
    misled: tuple[int, ...],
    asked: list[int],
    right: bool,
) -> None:
    made, asks = trial(Play()), Asks(talked, refused, misled)
    made._executor = cast(Any, asks)

    why = made._otherwise(cast(Any, None), 0)

    assert asks.answers == asked
    assert (why == "") is right
    assert asks.answer == LOW


def test_a_script_that_takes_neither_figure_cannot_be_judged() -> None:
    made = trial(Play())
    made._executor = cast(Any, Asks(True, (NOT_A_NUMBER, HIGH), ()))

    with pytest.raises(Misled):
        made._otherwise(cast(Any, None), 0)


@pytest.mark.parametrize(
    ("talked", "refused", "marks", "by_itself", "hears"),
    [
        (False, (), (1, 2), True, False),
        (True, (), (1, 1), True, False),
        (True, (), (1, 2), True, True),
        (True, (HIGH,), (1, 1), True, True),
        (True, (), (1, 1), False, True),  # mates would have to try it together
    ],
)
def test_what_other_answers_do_not_change_does_not_hear_them(
    talked: bool, refused: tuple[int, ...], marks: tuple[int, int], by_itself: bool, hears: bool
) -> None:
    made, asks = trial(Play()), Asks(talked, refused, ())
    asks.marks = {LOW: (marks[0], 12), HIGH: (marks[1], 12)}
    made._executor, made._by_itself = cast(Any, asks), by_itself

    assert made._hears(cast(Any, None)) is hears
    assert asks.answer == LOW
