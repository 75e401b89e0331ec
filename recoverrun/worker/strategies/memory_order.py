"""The order in which a gradient's elements are reduced: that of its parameter's memory.

Weights need not lie row by row: `torch.linalg.qr` gives columns, and images train faster with
`channels_last`. gloo adds up an element in an order that depends on its place, and a run without a
loss has torch's sums.
"""

import torch


def laid_out(part: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """The flat `part` of memory that is reduced, as the gradient of `param`: DDP keeps to the
    parameter's order if that is dense, else goes row by row (reducer.cpp, torch 2.13).
    """
    if param.is_contiguous() or not _is_dense(param):
        return part.view(param.shape)
    return part.as_strided(param.shape, param.stride())


def _is_dense(tensor: torch.Tensor) -> bool:
    """True if its elements fill their memory, in any order of the dimensions."""
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    filled = 1
    for stride, size in sorted((stride, size) for stride, size in dimensions if size != 1):
        if stride != filled:
            return False
        filled *= size
    return True
