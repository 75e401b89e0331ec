"""The defaults of groups that nobody tells anything of lost ranks."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from ft_collectives.process_group.substitution_policy import NO_POLICY, LostInputs


def test_the_default_is_complete_and_changes_nothing() -> None:
    given = torch.ones(2)

    assert not NO_POLICY.replaying()
    assert NO_POLICY.result_alone(given) is given
    assert NO_POLICY.find_lost_inputs((0, 1), [given]) is None
    NO_POLICY.on_exchange()
    NO_POLICY.on_partial("all_reduce", 1, 2)


def test_nothing_is_set_from_outside() -> None:
    with pytest.raises(FrozenInstanceError):
        NO_POLICY.replaying = lambda: True  # type: ignore[misc]


def test_what_is_not_known_of_lost_ranks_is_no_input() -> None:
    assert LostInputs() == ((), True, False)
