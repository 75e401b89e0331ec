"""In a rehearsal, what other ranks would have said is made wrong on purpose."""

import pytest
import torch

from recoverrun.worker.replay.poison import NOT_A_NUMBER, poisoned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_floating_point_becomes_nothing_at_all(dtype: torch.dtype) -> None:
    assert bool(poisoned(torch.zeros(3, dtype=dtype), NOT_A_NUMBER).isnan().all())


@pytest.mark.parametrize("value", [0, 1, 3_000_000])
def test_a_count_becomes_far_more(value: int) -> None:
    assert int(poisoned(torch.tensor(value), NOT_A_NUMBER)) == 3 * value + 1


def test_a_flag_becomes_its_opposite() -> None:
    assert poisoned(torch.tensor([True, False]), NOT_A_NUMBER).tolist() == [False, True]
