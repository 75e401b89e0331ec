"""Evaluations and averages between the steps of returning.py."""

import torch
import torch.distributed as dist


def without_gradients(model: torch.nn.Module, x: torch.Tensor) -> None:
    """FSDP2 leaves whole parameters in the outermost module."""
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()


def steer_by(total: float, optimizer: torch.optim.Optimizer) -> None:
    """The mean of the losses of an epoch, which each rank has added up, steers the rate."""
    mean = torch.tensor(total)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] / (1 + 1e-3 * mean.item())


def averaged(
    averages: list[torch.Tensor] | None, model: torch.nn.Module
) -> list[torch.Tensor] | None:
    """Averages of the parameters, which begin after the first step."""
    now = [param.detach().clone() for param in model.parameters()]
    if averages is None:
        return now
    return [old + (new - old) / 8 for old, new in zip(averages, now, strict=True)]
