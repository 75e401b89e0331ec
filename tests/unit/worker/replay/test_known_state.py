"""Values that begin anew: a rank that is lost begins with them as all others do."""

from typing import Any

import pytest
import torch

from recoverrun.worker.replay.known_state import is_nothing, merged


@pytest.mark.parametrize(
    ("value", "nothing"),
    [
        (0, True),
        ("", True),
        ([], True),
        (None, True),
        (torch.zeros(3), True),
        ((torch.zeros(2), torch.zeros(2)), True),
        ([[0, 0.0], ()], True),
        ((torch.zeros(2), torch.ones(2)), False),
        ([0, 1], False),
        ("a", False),
    ],
)
def test_counters_and_states_of_recurrent_networks_begin_with_nothing(
    value: Any, nothing: bool
) -> None:
    assert is_nothing(value) is nothing


@pytest.mark.parametrize("known", [True, False])
def test_the_state_of_a_recurrent_network_is_known_where_it_begins_anew(known: bool) -> None:
    """As each epoch begins, and though ranks differed in it."""
    before, anew, theirs = ({"hidden": (torch.full((2,), one),)} for one in (1.0, 0.0, 2.0))

    values, unknown = merged(
        before, anew, theirs, begins=lambda key, now: known and is_nothing(now)
    )

    assert unknown == (set() if known else {"hidden"})
    assert (values["hidden"] is anew["hidden"]) is known
