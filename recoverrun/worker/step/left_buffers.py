"""Buffers that a rank leaves, from which all take them over as a forward begins (`ForwardSync`).

It leaves them in shared memory as a transaction ends. Should it be lost before the next forward,
nobody has executed its microbatch, and nobody else could tell what they were.
"""

import threading
from collections.abc import Mapping
from typing import Any

import msgpack
import torch
from torch import Tensor

from recoverrun.worker.step.forward_sync import Values
from rendezvous.protocol.messages import LostContexts
from rendezvous.protocol.shared_memory import Writer, buffers_beside

WAIT_S = 2.0
"""The message about a lost rank comes after the view without it."""


class LeftBuffers:
    """Buffers that this rank leaves, and that lost ranks have left; by the number of the module."""

    def __init__(self, context: str) -> None:
        """`context` is the path of this rank's memory for contexts, "" if it leaves nothing."""
        self._path = buffers_beside(context)
        self._writer: Writer | None = None
        self._came = threading.Condition()
        self._left: dict[int, bytes] = {}

    def leave(self, step: int, buffers: Mapping[int, Values]) -> None:
        """Leave those with which transaction `step` ends, unless they are too many."""
        self.open()
        if self._writer is not None:
            self._writer.write(_packed(step, buffers))

    def open(self) -> None:
        """Make the file, unless that is done. Where it cannot be made, nothing is left."""
        if not self._path or self._writer is not None:
            return
        try:
            self._writer = Writer(self._path)
        except OSError:
            self._path = ""

    def hear(self, left: LostContexts) -> None:
        """Take what lost ranks have left, on the control thread."""
        buffers = dict(left.buffers)
        with self._came:
            self._left.update({rank: buffers.get(rank, b"") for rank, _ in left.contexts})
            self._came.notify_all()

    def forget(self, rank: int) -> None:
        """`rank` takes part again."""
        with self._came:
            self._left.pop(rank, None)

    def of(self, rank: int, step: int) -> dict[int, Values]:
        """Those with which lost `rank` ended transaction `step`; nothing if that is not known."""
        with self._came:
            self._came.wait_for(lambda: rank in self._left, timeout=WAIT_S)
            packed = self._left.setdefault(rank, b"")  # waited for once
        found, buffers = _unpacked(packed)
        return buffers if found == step else {}


def _packed(step: int, buffers: Mapping[int, Values]) -> bytes:
    every = [(number, at, one) for number, own in buffers.items() for at, one in own.items()]
    kinds = [
        [number, at, str(one.dtype).removeprefix("torch."), list(one.shape)]
        for number, at, one in every
    ]
    flat = [one.reshape(-1).view(torch.uint8) for _, _, one in every]
    content = torch.cat(flat).cpu().numpy().tobytes() if flat else b""
    packed: bytes = msgpack.packb([step, kinds, content], use_bin_type=True)
    return packed


def _unpacked(packed: bytes) -> tuple[int, dict[int, Values]]:
    """The transaction, and the buffers; -1 and nothing of what is not whole."""
    if not packed:
        return -1, {}
    step, kinds, content = msgpack.unpackb(packed, raw=False)
    memory = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0)
    found: dict[int, Values] = {}
    start = 0
    for number, at, name, shape in kinds:
        like: Tensor = torch.empty(shape, dtype=_dtype(name))
        part: Any = memory[start : start + like.nbytes].clone()
        found.setdefault(number, {})[at] = part.view(like.dtype).reshape(shape)
        start += like.nbytes
    return step, found


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype), f"{name}: of a tensor"
    return found
