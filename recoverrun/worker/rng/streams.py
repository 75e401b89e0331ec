"""The random streams of a process as plain values, which can be read, packed and restored.

A microbatch draws its dropout masks and augmentations from these streams. To re-execute it as
another rank is to run it on that rank's streams (docs/recovery.md). They are torch's CPU and CUDA
generators, Python's `random`, and numpy's legacy generator if the script has imported numpy.
Generators that the script keeps in its objects are handled by `object_generators`.
"""

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ft_collectives.communicators.script_modes import aside
from recoverrun.worker.rng import host_streams

CPU_BYTES = 24 + 8 * 624 + 40
"""Size of the state of torch's CPU generator: head, words, cached normal samples (`skip_ahead`)."""

PrivateCounts = tuple[tuple[bytes, int], ...]
"""For torch's CPU generator and each of CUDA's: its seed, and how many of its numbers since it was
seeded were drawn by code that the script runs on this rank only (`private_draws`)."""


class Streams:
    """The states of all streams. Two are equal if and only if the same numbers follow.

    `torch_cpu` may be the tensor that torch returned, if nobody else holds it: streams are read for
    every microbatch, and few of them are ever needed as bytes.
    """

    __slots__ = ("_torch_cpu", "numpy", "private_counts", "python", "torch_cuda")

    def __init__(
        self,
        *,
        torch_cpu: bytes | torch.Tensor,
        torch_cuda: tuple[bytes, ...],
        python: bytes,
        numpy: bytes,
        private: PrivateCounts = (),
    ) -> None:
        self._torch_cpu = torch_cpu
        self.torch_cuda = torch_cuda
        self.python = python
        self.numpy = numpy
        self.private_counts = private

    @property
    def torch_cpu(self) -> bytes:
        if not isinstance(self._torch_cpu, bytes):
            self._torch_cpu = tensor_bytes(self._torch_cpu)
        return self._torch_cpu

    @property
    def private(self) -> tuple[int, ...]:
        """The count of numbers of torch's CPU generator and of each of CUDA's that were drawn
        privately since these were seeded.
        """
        states = (self.torch_cpu, *self.torch_cuda)
        known = [*self.private_counts, *[(b"", 0)] * len(states)]
        return tuple(
            count if state[:8] == seed else 0
            for state, (seed, count) in zip(states, known, strict=False)
        )

    def with_private(self, counts: Iterable[int]) -> "Streams":
        """Return the same streams with other counts of private draws."""
        states = (self.torch_cpu, *self.torch_cuda)
        return Streams(
            torch_cpu=self._torch_cpu,
            torch_cuda=self.torch_cuda,
            python=self.python,
            numpy=self.numpy,
            private=tuple((state[:8], count) for state, count in zip(states, counts, strict=True)),
        )

    @property
    def hosts(self) -> dict[str, bytes]:
        """The streams of `host_streams`, by name."""
        return {"python": self.python, "numpy": self.numpy}

    def hosted(self, hosts: Mapping[str, bytes]) -> "Streams":
        """Return the same streams, but these of `host_streams` in place of its own."""
        return Streams(
            torch_cpu=self._torch_cpu,
            torch_cuda=self.torch_cuda,
            python=hosts.get("python", self.python),
            numpy=hosts.get("numpy", self.numpy),
            private=self.private_counts,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Streams):
            return NotImplemented
        mine = self.torch_cpu, self.torch_cuda, self.python, self.numpy
        return mine == (other.torch_cpu, other.torch_cuda, other.python, other.numpy)

    def __hash__(self) -> int:
        return hash((self.torch_cpu, self.torch_cuda, self.python, self.numpy))

    def __repr__(self) -> str:
        return f"Streams({hash(self):x})"

    def pack(self) -> list[Any]:
        """Plain values for msgpack."""
        return [self.torch_cpu, list(self.torch_cuda), self.python, self.numpy, list(self.private)]

    @staticmethod
    def unpack(packed: list[Any]) -> "Streams":
        """Raises ValueError if `packed` is not what `pack` makes."""
        if type(packed) is not list or len(packed) != 5 or type(packed[1]) is not list:
            raise ValueError("random streams: not five parts")
        cpu, cuda, python, numpy, private = packed
        if any(type(part) is not bytes for part in (cpu, *cuda, python, numpy)):
            raise ValueError("random streams: not bytes")
        known = len(python) in host_streams.PYTHON_BYTES and len(numpy) in host_streams.NUMPY_BYTES
        if len(cpu) != CPU_BYTES or not known:
            raise ValueError("random streams: wrong sizes")
        counted = type(private) is list and all(type(part) is int and part >= 0 for part in private)
        if not counted or len(private) != 1 + len(cuda):
            raise ValueError("random streams: no counts of private draws")
        streams = Streams(torch_cpu=cpu, torch_cuda=tuple(cuda), python=python, numpy=numpy)
        return streams.with_private(private)


class _Process:
    """The private draws of this process so far; `private_draws` counts them."""

    private: PrivateCounts = ()


_process = _Process()  # mutable: there is one set of streams in a process, and one count


def private_counts() -> PrivateCounts:
    return _process.private


def set_private_counts(counts: PrivateCounts) -> None:
    """Each reading carries `counts` from here on."""
    _process.private = counts


@aside
def read_streams() -> Streams:
    """Return the present state of all streams."""
    cuda: tuple[bytes, ...] = ()
    if torch.cuda.is_initialized():
        cuda = tuple(tensor_bytes(state) for state in torch.cuda.get_rng_state_all())
    return Streams(
        torch_cpu=torch.default_generator.get_state(),
        torch_cuda=cuda,
        python=host_streams.read_python(),
        numpy=host_streams.read_numpy(),
        private=_process.private,
    )


def restore_streams(streams: Streams) -> None:
    """Make the numbers that followed `streams` follow again."""
    torch.set_rng_state(bytes_tensor(streams.torch_cpu))
    if streams.torch_cuda and torch.cuda.is_initialized():
        torch.cuda.set_rng_state_all([bytes_tensor(state) for state in streams.torch_cuda])
    host_streams.restore_python(streams.python)
    host_streams.restore_numpy(streams.numpy)


@aside
def tensor_bytes(tensor: torch.Tensor) -> bytes:
    state = tensor if tensor.is_cpu and tensor.is_contiguous() else _plain(tensor)
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous()


def bytes_tensor(packed: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)
