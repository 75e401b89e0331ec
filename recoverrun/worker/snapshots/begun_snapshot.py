"""The snapshot that is being taken: its bay, and the tensors that wait to be copied."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from recoverrun.worker.arrival.tensor_memory import Departures
from recoverrun.worker.snapshots.copier import Copy, address_of, copy_all
from recoverrun.worker.snapshots.piece_table import Placed
from recoverrun.worker.snapshots.unchanged_tensors import lies_as_it_is
from rendezvous.bays.client import Bay, KeeperClient

MOST_APART = 16 << 20
"""Bytes: of more the memory is asked for at once, and the keeper is waited for."""


@dataclass(slots=True, eq=False)
class BegunSnapshot:
    """The snapshot that is being taken.

    The keeper of a busy node may be slow to answer, as it takes the processor last. So the thread
    asks it for memory, and what is copied at the top of the step lies apart until then.
    """

    step: int
    wanted: tuple[int, int, int]  # bytes of pieces and of notes, and the turn
    table: bytes
    told: bytes
    learns: bool = False
    gradients: bool = True  # their values are in it
    proof: int | None = None  # of the losses of that backward
    waiting: list[tuple[str, torch.Tensor, int, int]] = field(default_factory=list)
    """Copied by the thread: name, tensor, and where it lay and how often it had changed."""
    offsets: list[int] = field(default_factory=list)  # of these, in the bay
    apart: bytearray = field(default_factory=bytearray)
    _bay: Bay | None = None

    @property
    def bay(self) -> Bay:
        """The memory; there once the thread has copied."""
        assert self._bay is not None, f"the snapshot of step {self.step} has no memory yet"
        return self._bay

    def early(self, client: KeeperClient, first: int) -> memoryview:
        """Memory for the `first` bytes, which are copied at once. Raises SnapshotMissed."""
        if self.learns or first > MOST_APART:
            self._bay = client.reserve(*self.wanted, opened=first)
            return self._bay.memory
        self.apart = bytearray(first)
        return memoryview(self.apart)

    def add(self, name: str, tensor: torch.Tensor, offset: int) -> None:
        """Let the thread copy this tensor."""
        self.waiting.append((name, tensor, tensor.data_ptr(), tensor._version))
        self.offsets.append(offset)

    def copy(self, client: KeeperClient, on_half: Callable[[], None]) -> None:
        """Copy all that waits, in the thread. Raises SnapshotMissed."""
        if self._bay is None:
            self._bay = client.reserve(*self.wanted)
            self._bay.memory[: len(self.apart)] = self.apart
        else:
            self._bay.open()
        memory = self._bay.memory
        begin = address_of(memory)
        tensors = [tensor for _, tensor, _, _ in self.waiting]
        copies = [Copy(one, begin + at) for one, at in zip(tensors, self.offsets, strict=True)]
        copy_all(copies, on_half)

    def moved(self) -> list[str]:
        """Tensors that the thread copied and that are not where, or what, they were."""
        return [
            name
            for name, tensor, address, version in self.waiting
            if (tensor.data_ptr(), tensor._version) != (address, version)
        ]


def copy_now(pieces: Sequence[tuple[Placed, torch.Tensor]], memory: memoryview) -> None:
    departures = Departures(tensor for _, tensor in pieces)
    begin, end = address_of(memory), memory.nbytes
    for place, tensor in pieces:
        at = place.offset
        if lies_as_it_is(tensor) and at + tensor.nbytes <= end:  # nearly all, and there are many
            ctypes.memmove(begin + at, tensor.data_ptr(), tensor.nbytes)
            continue
        for part in departures.parts(tensor):
            memory[at : at + part.nbytes] = part
            at += part.nbytes
