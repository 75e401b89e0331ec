"""The snapshot that is being taken: its bay, and the tensors that wait to be copied."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from recoverrun.worker.arrival.tensor_memory import Departures
from recoverrun.worker.snapshots.copier import MemoryCopy, address_of, copy_all
from recoverrun.worker.snapshots.piece_layout import PieceLayout
from recoverrun.worker.snapshots.piece_table import PROOF_BYTES, RankImage
from recoverrun.worker.snapshots.unchanged_tensors import EXPECTED, lies_as_it_is, sample_of, sum_of
from rendezvous.bays.client import KeeperClient, MappedBay

MOST_APART = 16 << 20
"""Bytes: of more the memory is asked for at once, and the keeper is waited for."""


@dataclass(slots=True, eq=False)
class BegunSnapshot:
    """The snapshot that is being taken.

    The keeper of a busy node may be slow to answer, as it takes the processor last. So the thread
    asks it for memory, and what is copied at the top of the step lies apart until then. The thread
    packs the manifest, too.
    """

    step: int
    image: RankImage
    layout: PieceLayout
    turn: int
    learns: bool = False
    gradients: bool = True  # their values are in it
    proof: int | None = None  # of the losses of that backward
    told: bytes = b""  # the manifest
    apart: bytearray = field(default_factory=bytearray)
    _waiting: list[torch.Tensor] = field(default_factory=list)  # copied by the thread
    _marks: list[tuple[int, int, int]] = field(default_factory=list)
    """The address of each of these, its count of changes, and the sum of a sample."""
    _bay: MappedBay | None = None

    @property
    def bay(self) -> MappedBay:
        """The memory; there once the thread has copied."""
        assert self._bay is not None, f"the snapshot of step {self.step} has no memory yet"
        return self._bay

    def begin(self, client: KeeperClient) -> None:
        """Copy what is copied at once, and note what waits. Raises SnapshotMissed."""
        layout, tensors = self.layout, self.image.tensors
        if layout.first > MOST_APART:
            memory = self._reserve(client, opened=layout.first)
        else:
            self.apart = bytearray(layout.first)
            memory = memoryview(self.apart)
        places = layout.places
        copy_now([(places[one].offset, tensors[one]) for one in layout.at_once], memory)
        self._waiting = [tensors[number] for number in layout.later]
        self._marks = self._marks_now()

    def copy(self, client: KeeperClient, on_half: Callable[[], None]) -> None:
        """Copy all that waits, in the thread. Raises SnapshotMissed."""
        if self._bay is None:
            self._reserve(client)[: len(self.apart)] = self.apart
        else:
            self.bay.open()
        begin = address_of(self.bay.memory)
        places = (self.layout.places[number] for number in self.layout.later)
        pairs = zip(self._waiting, places, strict=True)
        copy_all([MemoryCopy(one, begin + place.offset) for one, place in pairs], on_half)

    def _reserve(self, client: KeeperClient, opened: int | None = None) -> memoryview:
        self.told = self.image.packed()
        notes = len(self.layout.table) + len(self.told) + PROOF_BYTES
        self._bay = client.reserve(self.layout.nbytes, notes, self.turn, opened=opened)
        return self._bay.memory

    def moved(self) -> list[str]:
        """Tensors that the thread copied and that are not where, or what, they were."""
        now = self._marks_now()
        if now == self._marks:
            return []
        names = (self.image.names[number] for number in self.layout.later)
        return [name for name, *marks in zip(names, now, self._marks, strict=True)
                if marks[0] != marks[1]]  # fmt: skip

    def _marks_now(self) -> list[tuple[int, int, int]]:
        """Marks of tensors that wait. No count tells of writes through `.data`, and the losses of
        the step alone of those to what is trained: of other tensors a sample is looked at.
        """
        names = (self.image.names[number] for number in self.layout.later)
        return [
            (one.data_ptr(), one._version, 0 if name.startswith(EXPECTED) else sample_of(one))
            for name, one in zip(names, self._waiting, strict=True)
        ]

    def is_as_it_was(self, name: str, summed: int) -> bool:
        """True if the copy of this tensor has the sum that the tensor had at the top."""
        names = self.image.names
        numbers = [number for number in self.layout.later if names[number] == name]
        return all(self._sum_of_copy(number) == summed for number in numbers)

    def _sum_of_copy(self, number: int) -> int:
        """Words are added where the tensor itself has any."""
        tensor, at = self.image.tensors[number], self.layout.places[number].offset
        shift = tensor.storage_offset() * tensor.element_size() % 8
        flat = torch.empty(shift + tensor.nbytes, dtype=torch.uint8)[shift:]
        flat.copy_(torch.frombuffer(self.bay.memory, dtype=torch.uint8)[at : at + tensor.nbytes])
        return sum_of(flat)


def copy_now(pieces: Iterable[tuple[int, torch.Tensor]], memory: memoryview) -> None:
    """Copy each tensor to its place in `memory`."""
    begin, end = address_of(memory), memory.nbytes
    others: list[tuple[int, torch.Tensor]] = []
    for at, tensor in pieces:
        if lies_as_it_is(tensor) and at + tensor.nbytes <= end:  # nearly all, and there are many
            ctypes.memmove(begin + at, tensor.data_ptr(), tensor.nbytes)
        else:
            others.append((at, tensor))
    departures = Departures(tensor for _, tensor in others)
    for begins, tensor in others:
        at = begins
        for part in departures.parts(tensor):
            memory[at : at + part.nbytes] = part
            at += part.nbytes
