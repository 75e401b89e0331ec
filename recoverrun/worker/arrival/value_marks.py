"""Marks of tensors and arrays: another one tells that something has changed where it lies."""

import sys
import time
from collections import deque
from types import FunctionType, ModuleType
from typing import Any

import torch

from ft_collectives.communicators.tensor_bits import bits_of
from recoverrun.worker.arrival import raw_memory
from recoverrun.worker.arrival.sharded_tensors import is_distributed
from recoverrun.worker.context.object_graph import LONG
from recoverrun.worker.data.object_copy import attributes_of

MOST_BYTES = 1 << 28
"""Of an array, or of a tensor that is written to as one, so that nobody counts its changes: a
larger one is data.
"""

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Kinds of plain ones: a parameter that is not trained is an average of weights, say."""

Mark = tuple[Any, ...]


def mark_of(value: Any) -> Mark:
    """The mark of a tensor or an array that may change in place; () for all else."""
    if mark := mark_of_tensor(value):
        return (*mark, *_sums(value)) if value.is_cpu and value.nbytes <= MOST_BYTES else mark
    if raw_memory.is_raw(value):
        return raw_memory.mark_of(value)
    if cannot_travel(value):
        return id(value), value._version
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray or not value.flags.writeable:
        return ()
    if value.nbytes > MOST_BYTES or value.dtype.kind not in raw_memory.NUMBERS:
        return ()
    flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    whole = len(flat) // 8 * 8
    words = flat[:whole].view(numpy.uint64)
    return value.nbytes, int(words.sum()), int(words[::3].sum()), int(flat[whole:].sum())


def mark_of_tensor(value: Any) -> Mark:
    """The mark of a tensor that may change in place; () for all else.

    Nothing counts what `torch._foreach_lerp_` does to a sharded tensor: its mark is the time.
    """
    number = -1
    if is_distributed(value) and not value.requires_grad:
        value, number = value._local_tensor, time.monotonic_ns()
    # Asking a view in a graph for its function may raise an error.
    if type(value) in TENSORS and not value.requires_grad:
        plain = value.layout is torch.strided and not value.is_inference() and not value.is_meta
        version = value._version if plain and number < 0 else number
        return (value.data_ptr(), value.nbytes, version) if plain else ()
    return ()


def _sums(tensor: torch.Tensor) -> Mark:
    """Sums of its bits: what is written through `.data` or a numpy array over the same memory is
    not counted in its version.
    """
    part: Any = tensor
    flat = bits_of((part._local_tensor if is_distributed(tensor) else part).detach())
    whole = 0 if flat.storage_offset() % 8 else flat.numel() // 8 * 8
    words, rest = flat[:whole], flat[whole:]
    if whole:  # nothing of a tensor that lies elsewhere can be seen as words
        words = words.view(torch.int64)
    return int(words.sum()), int(words[::3].sum()), int(rest.sum())


def cannot_travel(value: Any) -> bool:
    """True of a sparse tensor, and of one of a class of the script's: where it has changed, this is
    said.
    """
    if not isinstance(value, torch.Tensor) or value.requires_grad:
        return False
    return not is_strided(value) or not type(value).__module__.startswith("torch")


def is_strided(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.layout is torch.strided


def is_of_training(value: Any) -> bool:
    """True of a parameter, of a tensor with a graph, which the next step makes anew, and of what
    holds one. By types alone: a proxy may load what it stands for.
    """
    kind: Any = type(value)
    if issubclass(kind, torch.Tensor):
        return bool(value.requires_grad)
    if issubclass(kind, torch.nn.Module | type | FunctionType | ModuleType):
        return False
    parts: list[Any] = []
    if issubclass(kind, dict):
        parts = list(dict.values(value)) if len(value) <= LONG else []
    elif issubclass(kind, list | tuple | deque | set):
        parts = list(value) if len(value) <= LONG else []
    else:
        parts = list((attributes_of(value) or {}).values())
    return any(issubclass(type(one), torch.Tensor) and _has_graph(one) for one in parts)


def _has_graph(tensor: torch.Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # torch tells no graph of some views: those of FSDP1's flat parameters
        return True
