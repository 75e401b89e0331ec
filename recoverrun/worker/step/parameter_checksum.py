"""A checksum of what this rank holds, so that replicas that drift apart are noticed (INV-3).

Taken at the commit point of every K-th step, before its update: so it covers all that the updates
before it made, and whatever befell the parameters since. Replicas get the same sums, so that equal
parameters stay equal bit for bit. The coordinator compares; nobody waits for it.
"""

import ctypes
import zlib
from collections.abc import Iterable

import torch

from recoverrun.worker.context.evidence import memory
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState

SAMPLE = 8
"""Elements of a parameter that tell whether ranks hold the same."""


def due(worker: WorkerState) -> str:
    """The digest for the step that is about to be committed, "" if it is not its turn.

    It always is where lost ranks take part again.
    """
    every, strategy = worker.env.digest_every, worker.strategy
    turn = worker.joining or (every and worker.step % every == 0)
    if not turn or strategy is None:
        return ""
    return of(strategy)


def of(strategy: Strategy) -> str:
    """The checksum of this rank's trained parameters, its shard of them where they are sharded.

    Not of buffers: running means follow a rank's own microbatches.
    """
    buffers = {buffer.data_ptr() for buffer in strategy.buffers()}
    held = strategy.parameters()
    return checksum({n: one for n, one in held.items() if one.data_ptr() not in buffers})


def sample(params: Iterable[torch.Tensor]) -> int:
    """The checksum of a few elements in the midst of each, which an update of the whole changes
    nearly always.

    0 on accelerators, which are not waited for.
    """
    crc = 0
    for param in params:
        if not param.is_cpu or not param.is_contiguous():
            return 0
        each, count = param.element_size(), param.numel()
        first, size = count // 2 * each, min(SAMPLE, count - count // 2) * each
        if size:
            crc = zlib.crc32(memory(size).from_address(param.data_ptr() + first), crc)
    return crc


def checksum(tensors: dict[str, torch.Tensor]) -> str:
    """The checksum of names, kinds, shapes and every bit, in the order of names."""
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode(), crc)
        flat = tensor.cpu().contiguous()
        size = flat.numel() * flat.element_size()
        # The memory itself, not a copy; numpy, which could give it too, may not be there.
        crc = zlib.crc32((ctypes.c_char * size).from_address(flat.data_ptr()) if size else b"", crc)
    return f"{crc:08x}"
