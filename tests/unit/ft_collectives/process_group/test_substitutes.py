"""What a place that broadcasts tells of what its root would say."""

from typing import Any

import pytest
import torch

from ft_collectives.process_group.substitutes import SAMPLE, Habit, ObjectSite, Site


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
    habit = Habit()

    for words in said:
        habit.heard(words)

    assert habit.usual == usual


def test_a_small_tensor_becomes_a_habit_and_a_large_one_does_not() -> None:
    small, large = Site(), Site()

    for _ in range(3):
        small.hear(torch.ones(1), torch.zeros(1))
        large.hear(torch.zeros(SAMPLE), torch.zeros(SAMPLE))

    assert torch.equal(small.habit.usual, torch.zeros(1))
    assert large.habit.usual is None


def test_a_flag_that_turns_is_no_habit_but_may_be_known() -> None:
    site = Site()

    for value in (0, 0, 1):
        site.hear(torch.tensor(value), torch.tensor(value))

    assert site.habit.usual is None
    assert site.known and Site.tells(site.word())


def test_objects_travel_in_tensors_that_tell_nothing() -> None:
    site = ObjectSite()

    for value in (0, 1, 2):
        site.hear(torch.tensor(value), torch.tensor(value))

    assert not site.known and site.habit.usual is None
    assert not Site.tells(site.word())
    site.call(done=True)
    assert Site.tells(site.word())
