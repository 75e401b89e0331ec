"""Elements as bytes: in their own memory, and by way of a buffer."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from recoverrun.worker.arrival.tensor_memory import Departures, fill, memory_of, staged, unstage


def test_memory_is_the_tensors_own() -> None:
    tensor = torch.arange(3, dtype=torch.int16)
    memory = memory_of(tensor)
    memory[2:4] = b"\x05\x01"

    assert tensor.tolist() == [0, 0x105, 2] and len(memory) == 6


def test_memory_of_a_part_is_only_that_part() -> None:
    tensor = torch.arange(6, dtype=torch.uint8)

    assert bytes(memory_of(tensor[2:4])) == b"\2\3"


def test_memory_keeps_its_tensor_alive() -> None:
    tensor = torch.zeros(4)
    gone = weakref.ref(tensor)
    memory = memory_of(tensor)
    del tensor
    gc.collect()
    assert gone() is not None
    memory.release()
    del memory
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3).T,
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2, dtype=torch.complex64).conj().imag,
        torch.zeros(2, device="meta"),
    ],
    ids=["turned", "conjugate", "negative", "meta"],
)
def test_elements_that_do_not_lie_in_memory_have_none(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="do not lie"):
        memory_of(tensor)


SENT: dict[str, Callable[[], torch.Tensor]] = {
    "floats": lambda: torch.arange(24.0).reshape(2, 3, 4),
    "no dimensions": lambda: torch.tensor(3, dtype=torch.int64),
    "no elements": lambda: torch.zeros(0, 2),
    "complex": lambda: torch.randn(3, dtype=torch.complex128),
    "flags": lambda: torch.tensor([True, False]),
    "half": lambda: torch.randn(7).bfloat16(),
    "eighth": lambda: torch.randn(5).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("most", [1, 5, 16, 1000])
@pytest.mark.parametrize("make", SENT.values(), ids=SENT)
def test_a_bounded_buffer_carries_any_tensor(make: Callable[[], torch.Tensor], most: int) -> None:
    """Tensors of other devices take this way; memory of the CPU is as good as theirs here."""
    sent, found = make(), torch.zeros_like(make())
    parts = [bytes(part) for part in staged(sent, most)]
    assert b"".join(parts) == bytes(memory_of(sent))
    assert all(len(part) <= most for part in parts)
    arriving = iter(parts)

    def receive(memory: memoryview) -> None:
        memory[:] = next(arriving)

    unstage(found, receive, most)

    assert bytes(memory_of(found)) == bytes(memory_of(sent)) and not list(arriving)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(12)[::2],
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.randn(3)),
        torch.randn(4, requires_grad=True)[::2],
    ],
    ids=["plain", "turned", "every other", "channels", "conjugate", "parameter", "of a graph"],
)
def test_elements_leave_and_arrive_in_one_order(tensor: torch.Tensor) -> None:
    """The receiver has a layout of its own."""
    (sent,) = Departures([tensor]).parts(tensor)
    raw = bytes(sent)
    found = torch.zeros_like(tensor.detach())
    plain = torch.zeros(tensor.shape, dtype=tensor.dtype)
    for into in (found, plain):

        def receive(memory: memoryview) -> None:
            memory[:] = raw

        fill(into, receive)

    assert torch.equal(found, tensor) and torch.equal(plain, tensor)


def test_a_parameter_is_filled_without_a_graph() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2).T.contiguous())
    turned = torch.nn.Parameter(torch.ones(4, 2)).T

    for tensor in (weight, turned):
        fill(tensor, lambda memory: memory.__setitem__(slice(None), bytes(len(memory))))

    assert not weight.any() and not turned.any() and weight.grad_fn is None
