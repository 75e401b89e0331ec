"""Gives a tensor or an array the elements of another one, where it lies."""

from typing import Any

import torch

from recoverrun.worker.arrival import raw_memory
from recoverrun.worker.arrival.sharded_tensors import LocalShard, is_distributed, local


def fill_elements(present: Any, value: Any) -> bool:
    """Give a tensor or an array its elements where it lies; False if there is none like it."""
    if isinstance(value, LocalShard) and is_distributed(present):
        present, value = local(present), value.tensor
    elif is_distributed(value) and is_distributed(present):
        present, value = local(present), local(value)
    if raw_memory.fill(present, value):
        return True
    if not _are_alike(present, value) or type(value) in raw_memory.KINDS:
        return False
    if present.shape != value.shape or present.dtype != value.dtype:
        return False
    if isinstance(value, torch.Tensor):
        present.detach().copy_(value)
    else:
        present[...] = value
    return True


def _are_alike(present: Any, value: Any) -> bool:
    """True of two of one kind: a parameter that is not trained comes as a plain tensor."""
    if type(present) is torch.nn.Parameter and type(value) is torch.Tensor:
        return not (present.requires_grad or value.requires_grad)
    return type(present) is type(value)
