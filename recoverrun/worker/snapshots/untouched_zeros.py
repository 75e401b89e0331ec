"""Zeros for which no memory is taken before somebody writes to them or reads them.

Most scripts drop gradients before they add to them, so zeros in their place are never looked at;
taking memory for all of them took a good part of the time of going back.
"""

import mmap

import torch

from recoverrun.worker.snapshots.unchanged_tensors import is_candidate

OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""A forked child has a copy, as of all other tensors."""


def untouched_zeros(like: torch.Tensor) -> torch.Tensor:
    """Zeros of the shape, type and device of `like`, which require no gradient."""
    if not is_candidate(like):
        return torch.zeros_like(like)
    mapped = mmap.mmap(-1, like.nbytes, flags=OWN)
    return torch.frombuffer(mapped, dtype=like.dtype).view(like.shape)
