"""A place that broadcasts, and what it tells of what its root would say."""

from typing import Any

import pytest
import torch

from ft_collectives.process_group.substitutes import SAMPLE, CallSite, ObjectCallSite, UsualValue


@pytest.mark.parametrize(
    ("said", "usual"),
    [
        ([False], None),
        ([False, False], False),
        ([0, False], None),
        ([False, False, True], None),
        ([False, True, True, True], None),
        ([[None, 1], [None, 1]], [None, 1]),
        ([3, None, 3, 3], None),
    ],
)
def test_a_habit_is_what_was_always_said_and_more_than_once(said: list[Any], usual: Any) -> None:
    usual_value = UsualValue()

    for words in said:
        usual_value.heard(words)

    assert usual_value.usual == usual


def test_a_small_tensor_becomes_a_habit_and_a_large_one_does_not() -> None:
    small, large = CallSite(), CallSite()

    for _ in range(3):
        small.hear(torch.ones(1), torch.zeros(1))
        large.hear(torch.zeros(SAMPLE), torch.zeros(SAMPLE))

    assert torch.equal(small.usual_value.usual, torch.zeros(1))
    assert large.usual_value.usual is None


def test_one_element_of_a_column_may_be_sent() -> None:
    site, column = CallSite(), torch.arange(3.0).view(1, 3)[:, 1]

    for _ in range(3):
        site.hear(column.clone(memory_format=torch.preserve_format), column)

    assert column.stride() == (3,) and torch.equal(site.usual_value.usual, column)


def test_a_flag_that_turns_is_no_habit_but_may_be_known() -> None:
    site = CallSite()

    for value in (0, 0, 1):
        site.hear(torch.tensor(value), torch.tensor(value))

    assert site.usual_value.usual is None
    assert site.known and CallSite.tells(site.word())


def test_objects_travel_in_tensors_that_tell_nothing() -> None:
    site = ObjectCallSite()

    for value in (0, 1, 2):
        site.hear(torch.tensor(value), torch.tensor(value))

    assert not site.known and site.usual_value.usual is None
    assert not CallSite.tells(site.word())
    site.call(done=True)
    assert CallSite.tells(site.word())
