"""A snapshot as a source of state: what was kept in memory of this rank."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from recoverrun.worker.arrival.packing import DTYPES
from recoverrun.worker.arrival.state_source import Piece, StateLost
from recoverrun.worker.arrival.tensor_memory import memory_of
from recoverrun.worker.snapshots.piece_table import Placed, unpacked_image, unpacked_table
from rendezvous.bays.client import KeeperClient, SnapshotLost
from rendezvous.snapshots.identity import SnapshotId


class NotRestored(BaseException):
    """The script cannot go on from a snapshot. The text says why.

    No script catches it: it would go on with a state that is not the one of that step.
    """


class Snapshot:
    """Implements `arrival.state_source.StateSource` over what a keeper has."""

    def __init__(self, client: KeeperClient, attempt: int, step: int) -> None:
        """Raises StateLost."""
        try:
            self._kept = client.open(attempt, step)
            self._manifest, self.proof = unpacked_image(self._kept.image)
            self._table: list[Placed] = unpacked_table(self._kept.table)
        except (SnapshotLost, ValueError) as error:
            raise StateLost(str(error)) from error

    @property
    def id(self) -> SnapshotId:
        return self._kept.id

    @property
    def attempt(self) -> int:
        return self._kept.id.attempt

    @property
    def step(self) -> int:
        return self._kept.id.step

    def manifest(self) -> Mapping[str, Any]:
        return self._manifest

    def pieces(self) -> tuple[Piece, ...]:
        return tuple(one.piece for one in self._table)

    def read(self, index: int, into: memoryview) -> None:
        """Fill `into` with piece `index`. Raises StateLost."""
        if into.nbytes:
            try:
                self._kept.read(self._table[index].offset, into)
            except SnapshotLost as error:
                raise StateLost(str(error)) from error

    def close(self) -> None:
        self._kept.close()


class Reading:
    """All pieces of a snapshot, which a thread reads while the script runs its first lines: most of
    that time memory is taken from the system.
    """

    def __init__(self, snapshot: Snapshot, amid: Callable[[], None]) -> None:
        """`amid`: see `tensors_of`."""
        self._found: list[torch.Tensor] | StateLost = []
        self._snapshot = snapshot
        self._amid = amid
        self._thread = threading.Thread(target=self._read, name="recoverrun-restore", daemon=True)
        self._thread.start()

    def tensors(self) -> list[torch.Tensor]:
        """Waits until all are there. Raises StateLost."""
        self._thread.join()
        if isinstance(self._found, StateLost):
            raise self._found
        return self._found

    def _read(self) -> None:
        try:
            self._found = tensors_of(self._snapshot, self._amid)
        except StateLost as why:
            self._found = why


def tensors_of(snapshot: Snapshot, amid: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
    """All pieces, in memory of their own; `amid` is called with half of them. Raises StateLost."""
    found = []
    pieces = snapshot.pieces()
    for index, piece in enumerate(pieces):
        if index == len(pieces) // 2:
            amid()
        dtype = DTYPES.get(piece.dtype)
        if dtype is None:
            raise StateLost(f"a kept snapshot holds a tensor of {piece.dtype}")
        tensor = torch.empty(piece.shape, dtype=dtype)
        if tensor.nbytes != piece.nbytes:
            raise StateLost(f"a kept snapshot holds {piece.name} with another size")
        snapshot.read(index, memory_of(tensor))
        found.append(tensor)
    return found
