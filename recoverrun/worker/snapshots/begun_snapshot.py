"""The snapshot that is being taken: its bay, and the tensors that wait to be copied."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from recoverrun.worker.arrival.tensor_memory import Departures
from recoverrun.worker.snapshots.copier import address_of
from recoverrun.worker.snapshots.piece_table import Placed
from recoverrun.worker.snapshots.unchanged_tensors import lies_as_it_is
from rendezvous.bays.client import Bay


@dataclass(slots=True, eq=False)
class BegunSnapshot:
    """The snapshot that is being taken."""

    step: int
    bay: Bay
    table: bytes
    told: bytes
    waiting: list[tuple[str, torch.Tensor, int, int]] = field(default_factory=list)
    """Copied by the thread: name, tensor, and where it lay and how often it had changed."""
    learns: bool = False
    gradients: bool = True  # their values are in it
    proof: int | None = None  # of the losses of that backward

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
