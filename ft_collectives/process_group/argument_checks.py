"""Arguments that gloo refuses, refused with the exception and the words of gloo.

A protected group stages its tensors and runs other operations than the one that was called, among
the members that are left; so gloo never sees the script's own arguments. Each check here stands for
one of torch's (`ProcessGroupGloo.cpp` and `Utils.hpp` in torch/csrc/distributed/c10d, torch 2.13),
with its order of questions. All of them raise RuntimeError before anything is sent.
`size` is the number of ranks in the group, a lost one included.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ft_collectives.communicators.c10d import ReduceOp

BITWISE = ("BAND", "BOR", "BXOR")


def check_operation(op: Any, tensors: Sequence[torch.Tensor]) -> None:
    """gloo reduces by `op`, and can do so with the types of `tensors` (`getFunction`)."""
    if op == ReduceOp.PREMUL_SUM:
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    name = next((name for name in BITWISE if op == getattr(ReduceOp, name)), "")
    if name and any(one.is_floating_point() or one.is_complex() for one in tensors):
        raise RuntimeError(f"Cannot use ReduceOp.{name} with non-integral dtype")


def check_root(call: str, root: int, size: int) -> None:
    """`root` is a place in the group (`assertRootRank`)."""
    if not 0 <= root < size:
        raise RuntimeError(f"ProcessGroupGloo::{call}: invalid root rank: {root}")


def check_all_gather(slots: Sequence[torch.Tensor], source: torch.Tensor, size: int) -> None:
    """One slot for every rank, each of the type and shape of `source`."""
    if len(slots) != size:
        raise _all_gather_failed(
            f"invalid output tensor list at index 0 (expected length {size}, got {len(slots)})"
        )
    for number, slot in enumerate(slots):
        if slot.dtype != source.dtype:
            raise _all_gather_failed(
                f"invalid tensor type at index {number} (expected {_options(source)}, "
                f"got {_options(slot)})"
            )
        if slot.shape != source.shape:
            raise _all_gather_failed(
                f"invalid tensor size at index {number} (expected {_shape(source)}, "
                f"got {_shape(slot)})"
            )


def check_gather(slots: Sequence[torch.Tensor], size: int) -> None:
    """The root has one slot for every rank."""
    if len(slots) != size:
        raise RuntimeError(
            f"ProcessGroupGloo::gather: Incorrect output list size {len(slots)}. Output list size "
            f"should be {size}, same as size of the process group."
        )


def check_reduce_scatter(out: torch.Tensor, parts: Sequence[torch.Tensor], size: int) -> None:
    """One part for every rank, each of the shape of `out`."""
    if len(parts) != size:
        raise RuntimeError("invalid input tensor list size, must be world size")
    if any(part.shape != out.shape for part in parts):
        raise RuntimeError("Check failed: outputs[0].sizes().vec() == inputs[0][i].sizes().vec()")


def check_reduce_scatter_single(out: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """`source` has the type of `out`, and in its first dimension `size` times as many rows."""
    if out.dtype != source.dtype:
        raise RuntimeError("Check failed: outputTensors[i].dtype() == inputTensors[i].dtype()")
    if out.dim() and source.dim() and out.shape[0] * size != source.shape[0]:
        raise RuntimeError(
            "Check failed: outputShape[0] * worldSize == inputShape[0] "
            f"({out.shape[0] * size} vs. {source.shape[0]})"
        )
    if out.shape[1:] != source.shape[1:] or out.numel() * size != source.numel():
        raise RuntimeError("Check failed: outputShape[i] == inputShape[i]")


def check_all_to_all(outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor], size: int) -> None:
    """One tensor for every rank, and one from every rank."""
    for name, tensors in (("input", ins), ("output", outs)):
        if len(tensors) != size:
            raise RuntimeError(
                f"ProcessGroupGloo::alltoall: {name} tensor list size {len(tensors)} does not "
                f"match world size {size}"
            )


def check_splits(tensor: torch.Tensor, rows: Sequence[int], size: int) -> None:
    """`rows` are the rows of `tensor` for each rank; none: equally many (`checkSplitSizes`)."""
    if not rows:
        if tensor.shape[0] % size:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
    elif len(rows) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    elif sum(rows) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")


def check_bytes(out: torch.Tensor, source: torch.Tensor, size: int) -> None:
    """Check that as many bytes go out as come in, equally many for each rank, as gloo does."""
    if source.nbytes % size:
        raise RuntimeError("[enforce fail at alltoall.cc] in->size % context->size == 0. ")
    if source.nbytes != out.nbytes:
        raise RuntimeError("[enforce fail at alltoall.cc] in->size == out->size. ")


def _all_gather_failed(words: str) -> RuntimeError:
    return RuntimeError(f"ProcessGroupGloo::allgather: {words}")


def _shape(tensor: torch.Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def _options(tensor: torch.Tensor) -> str:
    return f"TensorOptions(dtype={tensor.dtype}, device={tensor.device})"
