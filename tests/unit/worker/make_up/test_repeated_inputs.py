"""A lost rank's microbatch with the inputs of the one before is not believed."""

from types import SimpleNamespace
from typing import Any

import pytest

from ft_collectives.step.vote import INPUTS_MASK
from recoverrun.worker.make_up.distinct_inputs import LEAST
from recoverrun.worker.make_up.repeated_inputs import RepeatedInputs
from recoverrun.worker.tracking.microbatches import Microbatch, MicrobatchPlace

FIRST = LEAST + 1
"""The first step that none of the votes noted here is of."""


def microbatch(index: int = 0) -> Any:
    top: Any = SimpleNamespace(loop=SimpleNamespace(id="train.py:9"))
    return Microbatch(index, (MicrobatchPlace(top, 0, 12),))


def noted(*votes: dict[int, int]) -> RepeatedInputs:
    repeated = RepeatedInputs()
    for step, digests in enumerate(votes):
        repeated.note(step, microbatch(), digests)
    return repeated


def moving(count: int = FIRST) -> list[dict[int, int]]:
    return [{0: 10 + step, 1: 20 + step} for step in range(count)]


LAST = 20 + FIRST - 1
"""The lost rank's inputs in the last vote."""


def test_the_inputs_of_the_step_before_are_not_believed() -> None:
    assert noted(*moving()).stays(FIRST, microbatch(), 1, LAST, {0: [99]})


def test_other_inputs_are_and_stay_believed_in_the_next_step() -> None:
    repeated = noted(*moving())

    assert not repeated.stays(FIRST, microbatch(), 1, 50, {0: [98]})
    assert not repeated.stays(FIRST + 1, microbatch(), 1, 51, {0: [99]})
    assert repeated.stays(FIRST + 2, microbatch(), 1, 51, {0: [97]})


def test_the_same_step_executed_again_is_no_repetition() -> None:
    repeated = noted(*moving())
    repeated.stays(FIRST, microbatch(), 1, 50, {0: [98]})

    assert not repeated.stays(FIRST, microbatch(), 1, 50, {0: [98]})


@pytest.mark.parametrize(
    "votes",
    [
        moving(LEAST),  # too few to expect anything
        [{0: 10, 1: 20}] + moving(),  # a rank had the same twice
        [{0: 5, 1: 20 + step} for step in range(FIRST)],
        [],
    ],
)
def test_it_is_believed_where_that_was_not_to_be_expected(votes: list[dict[int, int]]) -> None:
    repeated = noted(*votes)
    last = votes[-1][1] if votes else LAST

    assert not repeated.stays(len(votes), microbatch(), 1, last, {0: [99]})


@pytest.mark.parametrize("own", [{0: [10 + FIRST - 1]}, {0: []}, {}, {0: [0]}])
def test_it_is_believed_unless_survivors_have_gone_on(own: dict[int, list[int]]) -> None:
    assert not noted(*moving()).stays(FIRST, microbatch(), 1, LAST, own)


def test_later_microbatches_are_compared_once_a_step_has_told_of_them() -> None:
    repeated = noted(*moving())

    assert not repeated.stays(FIRST, microbatch(1), 1, 70, {0: [98, 60]})
    assert repeated.stays(FIRST + 1, microbatch(1), 1, 70, {0: [99, 61]})


def test_votes_tell_as_many_bits_as_are_compared() -> None:
    whole = LAST + (INPUTS_MASK + 1)

    assert noted(*moving()).stays(FIRST, microbatch(), 1, whole, {0: [99]})


def test_without_a_digest_nothing_is_known() -> None:
    assert not noted(*moving()).stays(FIRST, microbatch(), 1, 0, {0: [99]})
