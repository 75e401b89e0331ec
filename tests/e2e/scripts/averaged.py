"""Each parameter has an average of its own, and a count, as attributes."""

from collections.abc import Callable, Sequence

import torch


def run(params: Sequence[torch.Tensor], train: Callable[[], float], steps: int) -> None:
    for param in params:
        param.average, param.updates = param.detach().clone(), 0
    for _ in range(steps):
        train()
        for param in params:
            param.updates += 1
            param.average.add_(param.detach() - param.average, alpha=1 / param.updates)
    with torch.no_grad():
        for param in params:
            param.add_(param.average)
