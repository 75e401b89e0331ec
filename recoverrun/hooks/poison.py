"""What a collective answers in a proof: nothing that code could take for the truth."""

import torch


def poisoned(value: torch.Tensor) -> torch.Tensor:
    """Changed in place, so that whatever depends on it is far off: a count, an index, a flag."""
    if value.is_floating_point() or value.is_complex():
        return value.fill_(float("nan"))
    return value.logical_not_() if value.dtype == torch.bool else value.mul_(3).add_(1)
