"""The elements of a tensor as bytes in memory: where they lie, or staged through a bounded buffer.

A contiguous tensor on the CPU is sent from its own memory and received into it. One on another
device passes through a pinned buffer, part by part, on a stream of its own, so that the script's
kernels are not waited for. One that is not contiguous is laid out anew first.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from ft_collectives.communicators.tensor_bits import bits_of

STAGING_BYTES = 16 << 20
"""Of pinned memory, for one tensor at a time."""


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU, writable; the view keeps it alive."""
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise ValueError("the elements of this tensor do not lie in memory as they are")
    if not tensor.nbytes:
        return memoryview(bytearray())
    elements = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    elements.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(elements).cast("B")


class Departures:
    """Reads tensors as they are once all is done that is under way on their devices now."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            self._streams[device] = stream

    def parts(self, tensor: torch.Tensor) -> Iterator[memoryview]:
        """Yield the elements in C order; a part is valid until the next one is asked for."""
        with torch.no_grad(), self._on_stream(tensor.device):
            plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
            if plain.is_cpu:
                yield memory_of(plain)
            else:
                yield from staged(plain)

    def _on_stream(self, device: torch.device) -> AbstractContextManager[object]:
        stream = self._streams.get(device)
        return nullcontext() if stream is None else torch.cuda.stream(stream)


def staged(tensor: torch.Tensor, most: int = STAGING_BYTES) -> Iterator[memoryview]:
    """Yield the bytes of a contiguous `tensor`, at most `most` at a time, from one buffer."""
    buffer = _buffer(tensor, most)
    for part in bits_of(tensor).split(most):
        here = buffer[: part.numel()]
        here.copy_(part)  # waits until it is done
        yield memory_of(here)


def fill(
    tensor: torch.Tensor, receive: Callable[[memoryview], None], most: int = STAGING_BYTES
) -> None:
    """Let `receive` fill `tensor` with its elements in C order, part by part."""
    with torch.no_grad():
        if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
            own = tensor.detach()
        else:
            own = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if own.is_cpu:
            receive(memory_of(own))
        else:
            unstage(own, receive, most)
        if own.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(own)


def unstage(
    tensor: torch.Tensor, receive: Callable[[memoryview], None], most: int = STAGING_BYTES
) -> None:
    """Fill a contiguous `tensor`, at most `most` bytes at a time, by way of one buffer."""
    buffer = _buffer(tensor, most)
    for part in bits_of(tensor).split(most):
        here = buffer[: part.numel()]
        receive(memory_of(here))
        part.copy_(here)


def _buffer(tensor: torch.Tensor, most: int) -> torch.Tensor:
    size = min(most, tensor.nbytes)
    return torch.empty(size, dtype=torch.uint8, pin_memory=tensor.is_cuda)
