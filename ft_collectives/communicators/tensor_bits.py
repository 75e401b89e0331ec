"""The elements of a tensor as bytes.

A tensor of one element is contiguous whatever its stride, as `h[:, 1]` of a single row is, and
`contiguous()`, `reshape(-1)` and `clone()` leave that stride to it. torch views a tensor as bytes
only where the last stride is 1.
"""

import torch


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in order, as a flat tensor of uint8 without a graph.

    It shares the memory of a contiguous tensor; of any other it is a copy.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
