"""Gradients that are finite or not, and who looks at those that are not."""

import itertools

import pytest
import torch

from recoverrun.worker.verification.nonfinite import examiners, finite


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_element_is_enough(bad: float) -> None:
    for place in range(5):
        tensor = torch.ones(5)
        tensor[place] = bad

        assert not finite([torch.ones(3), tensor, torch.zeros(0)])


def test_infinities_that_cancel_are_seen() -> None:
    assert not finite([torch.tensor([torch.inf, -torch.inf])])


def test_a_sum_that_overflows_is_of_finite_elements() -> None:
    assert finite([torch.full((4,), 3e38)])
    assert finite([torch.full((4,), 6e4, dtype=torch.float16), torch.zeros(0)])


def test_each_odd_slot_has_one_sound_examiner_among_the_living() -> None:
    for size in range(2, 7):
        for live in itertools.combinations(range(6), size):
            for many in range(1, size):
                for odd in itertools.combinations(live, many):
                    found = examiners(list(odd), live)

                    assert sorted(found) == list(odd)
                    assert set(found.values()) <= set(live) - set(odd)


def test_it_is_the_next_one_so_that_work_is_shared() -> None:
    assert examiners([0, 3], (0, 1, 2, 3, 4)) == {0: 1, 3: 4}
    assert examiners([2, 4], (0, 2, 4)) == {2: 0, 4: 0}
