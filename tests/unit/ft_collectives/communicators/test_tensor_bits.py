"""Tensors as bytes, also those of one element that lie in a column."""

import pytest
import torch

from ft_collectives.communicators.tensor_bits import bits_of

TENSORS = {
    "flat": torch.arange(6.0),
    "column": torch.arange(6.0).view(3, 2)[:, 1],
    "column of one": torch.arange(3.0, dtype=torch.float64).view(1, 3)[:, 1],
    "scalar": torch.arange(3.0)[1],
    "empty": torch.empty(0, 4),
    "bools": torch.tensor([[True, False]]),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_bytes_are_those_of_the_elements_in_order(tensor: torch.Tensor) -> None:
    assert bytes(bits_of(tensor).tolist()) == tensor.numpy().tobytes()


@pytest.mark.parametrize("name", ["flat", "column of one", "scalar"])
def test_bytes_of_a_contiguous_tensor_are_its_memory(name: str) -> None:
    tensor = TENSORS[name].clone(memory_format=torch.preserve_format)

    bits_of(tensor).zero_()

    assert not tensor.any()


def test_bytes_have_no_graph() -> None:
    assert not bits_of(torch.ones(2, requires_grad=True) * 2).requires_grad
