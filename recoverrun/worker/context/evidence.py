"""The evidence that a microbatch is the right one: its inputs, and the bits of its loss.

Each rank notes, as it trains, a digest of all that enters its model in a microbatch, and one of the
loss with which the backward begins. A survivor that executes the microbatch again must note the
same. Of large tensors evenly spread parts are digested: two samples of a data set differ in more
places than lie between the parts.
"""

import ctypes
import functools
import math
import zlib
from collections.abc import Iterable
from typing import Any

import torch

from recoverrun.worker.rng.streams import Streams

WHOLE_BYTES = 1 << 14
"""Tensors up to here are digested whole; of larger ones as many bytes, evenly spread."""

PARTS = 64

DEPTH = 4

QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})

PLAIN = (bool, int, float, str, bytes, type(None))

Mark = tuple[int, int]
"""Digests of a microbatch's inputs and of its loss; 0 where there was nothing to digest."""


class IterationEvidence:
    """The evidence since an iteration began, by the script itself or executed again."""

    def __init__(self) -> None:
        self.inputs = 0
        self.loss = 0
        self.entered: list[int] = []  # the values of `inputs` after each forward
        self.latest = 0  # digest of the inputs since the last backward alone
        self._backward = False  # one has begun since the last forward
        self._first: tuple[int, Streams] | None = None  # of the first forward
        self._door = 0

    def enters(self, digest: int, streams: Streams | None) -> None:
        """A forward begins with inputs of this digest. `streams` are kept at the first one."""
        self.inputs = zlib.crc32(digest.to_bytes(4, "little"), self.inputs) or 1
        self.loss = 0  # that of the microbatch before
        self.entered.append(self.inputs)
        before = 0 if self._backward else self.latest
        self.latest, self._backward = zlib.crc32(digest.to_bytes(4, "little"), before) or 1, False
        if self._first is None and streams is not None:
            self._first = self.inputs, streams

    def ends(self, digest: int) -> None:
        """The backward begins, from a loss that has this digest."""
        self.loss = digest
        self.passes()

    def passes(self) -> None:
        """A backward begins, or is passed over."""
        self._backward = True

    @property
    def door(self) -> int:
        """The digest of the state in which the first forward began: its inputs and the random
        streams; 0 if the streams were not read. It is computed when it is first asked for.
        """
        if self._first is not None and not self._door:
            inputs, streams = self._first
            self._door = crc_of_streams(streams, inputs)
        return self._door

    @property
    def mark(self) -> Mark:
        return self.inputs, self.loss


def digest_of_inputs(values: Iterable[Any]) -> int:
    crc = 0
    for value in values:
        crc = _digested(value, crc, DEPTH)
    return crc


def digest_of_losses(losses: Any) -> int:
    """0 where there is nothing to digest."""
    crc = 0
    for loss in losses if isinstance(losses, list | tuple) else (losses,):
        if isinstance(loss, torch.Tensor) and loss.is_cpu:
            crc = _of_tensor(loss, crc)
    return crc


def _digested(value: Any, crc: int, depth: int) -> int:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, crc)
    if type(value) in PLAIN:
        return zlib.crc32(repr(value).encode(errors="replace"), crc)
    if isinstance(value, dict) and depth:
        for key, one in value.items():
            crc = _digested(one, zlib.crc32(str(key).encode(errors="replace"), crc), depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for one in value:
            crc = _digested(one, crc, depth - 1)
    return zlib.crc32(type(value).__name__.encode(), crc)


def _of_tensor(tensor: torch.Tensor, crc: int) -> int:
    """The checksum of dtype and shape, and of the content if that lies in the host's memory."""
    if type(tensor) is torch.Tensor:
        dtype = tensor.dtype
        head, size = _head(dtype, tensor.shape)
        plain = size and tensor.is_cpu and tensor.layout is torch.strided
        if plain and not dtype.is_complex and tensor.is_contiguous():
            return _crc_of_memory(tensor.data_ptr(), size, zlib.crc32(head, crc), WHOLE_BYTES)
    local = getattr(tensor, "_local_tensor", tensor)
    crc = zlib.crc32(f"{local.dtype} {tuple(local.shape)}".encode(), crc)
    if not local.is_cpu or local.layout is not torch.strided or local.is_quantized:
        return crc
    whole = local.is_contiguous() and not local.is_conj()
    return crc_of(local if whole else local.detach().contiguous(), crc, WHOLE_BYTES)


@functools.lru_cache(maxsize=64)
def _head(dtype: torch.dtype, shape: torch.Size) -> tuple[bytes, int]:
    """Dtype and shape as text, and the size of such a tensor in bytes, 0 for one that is quantized.

    It is cached: to write the text takes longer than to digest a loss.
    """
    size = 0 if dtype in QUANTIZED else math.prod(shape) * dtype.itemsize
    return f"{dtype} {tuple(shape)}".encode(), size


def crc_of(tensor: torch.Tensor, crc: int, most: int) -> int:
    """The checksum of a contiguous tensor in the host's memory; of one that is larger than `most`
    bytes, of parts with that size in all.
    """
    assert tensor.is_cpu, f"memory of {tensor.device} has no address here"
    size = tensor.numel() * tensor.element_size()
    return _crc_of_memory(tensor.data_ptr(), size, crc, most) if size else crc


def _crc_of_memory(address: int, size: int, crc: int, most: int) -> int:
    content = memory(size).from_address(address)
    if size <= most:
        return zlib.crc32(content, crc)
    view = memoryview(content)
    return zlib.crc32(b"".join([view[part] for part in _parts(size, most)]), crc)


@functools.lru_cache(maxsize=64)
def _parts(size: int, most: int) -> tuple[slice, ...]:
    """`PARTS` slices that are evenly spread over `size` bytes, and have `most` bytes in all."""
    part = most // PARTS
    starts = [number * (size - part) // (PARTS - 1) for number in range(PARTS)]
    return tuple(slice(start, start + part) for start in starts)


@functools.lru_cache(maxsize=64)
def memory(size: int) -> "type[ctypes.Array[ctypes.c_char]]":
    """The ctypes class of `size` bytes, cached: to make one takes longer than to digest a loss."""
    return ctypes.c_char * size


def crc_of_streams(streams: Streams, crc: int = 0) -> int:
    for part in (streams.torch_cpu, *streams.torch_cuda, streams.python, streams.numpy):
        crc = zlib.crc32(part, crc)
    return crc


def crc_of_named(name: str, gradient: torch.Tensor, dtype: torch.dtype | None) -> int:
    """The checksum of the gradient of the parameter `name`, as it is to be reduced in `dtype`; 0 if
    it is zero everywhere.
    """
    plain = gradient.detach().to(dtype or gradient.dtype)
    if not plain.any():
        return 0  # some torches leave out what is unused, some reduce zeros
    return crc_of_gradient(zlib.crc32(name.encode()), plain, plain)


def crc_of_gradient(place: int, gradient: torch.Tensor | None, like: torch.Tensor) -> int:
    """The checksum of the whole gradient of the parameter number `place`. No gradient counts as one
    of zeros. Checksums of several parameters are combined by `^`, in any order.
    """
    plain = torch.zeros_like(like) if gradient is None else gradient.detach()
    plain = plain.view_as(like).cpu().contiguous()  # from a device all of it is copied
    crc = crc_of(plain, 0, plain.numel() * plain.element_size())
    return crc * (2 * place + 1) & 0xFFFFFFFF  # checksums alone are linear: swapped ones cancel out
