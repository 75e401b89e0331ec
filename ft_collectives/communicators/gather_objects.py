"""Plain values that all members of a channel tell each other, as msgpack: two all-gathers."""

import ctypes
from typing import Any

import msgpack
import torch

from ft_collectives.communicators.channel import Channel, Communicator
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric

Words = dict[str, Any]


def gather(fabric: Fabric, channel: Channel, generation: int, mine: Words) -> dict[int, Words]:
    """Return what every member of `channel` gives as `mine`, by global rank.

    Raises Superseded if `generation` ends first, and TimedOut.
    """
    now = fabric.meet(channel)
    if now.generation != generation:
        raise Superseded
    packed = msgpack.packb(mine, use_bin_type=True)
    sizes = _all_gather(fabric, channel, now, torch.tensor([len(packed)]))
    room = max(int(size[0]) for size in sizes)
    padded = torch.zeros(room, dtype=torch.uint8)
    padded[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    rows = _all_gather(fabric, channel, now, padded)
    return {
        rank: msgpack.unpackb(_bytes(row[: int(size[0])]), raw=False)
        for rank, row, size in zip(now.members, rows, sizes, strict=True)
    }


def _all_gather(
    fabric: Fabric, channel: Channel, now: Communicator, tensor: torch.Tensor
) -> list[torch.Tensor]:
    outs = [torch.empty_like(tensor) for _ in now.members]
    if len(outs) == 1:
        return [tensor]
    staged = [tensor, *outs]
    fabric.memory.hold(staged)
    pending = fabric.launch(
        channel, now.generation, lambda group: group.allgather([outs], [tensor])
    )
    fabric.finish([pending], now.generation)
    fabric.memory.release(staged)
    return outs


def _bytes(row: torch.Tensor) -> bytes:
    return ctypes.string_at(row.data_ptr(), row.numel())
