"""Gradients of a DDP bucket on their way into staging memory and out of it."""

import torch

from recoverrun.worker.strategies.ddp_buckets import Gradients


def test_a_sum_is_scaled_as_a_whole_where_its_parts_come_one_by_one() -> None:
    """By a third it is rounded: parts that are scaled first sum up to other bits."""
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.zeros(1000))
    gradients = Gradients(params=[param], replicas=3, later=True)
    parts = [torch.randn(1000) for _ in range(3)]
    total = torch.zeros(gradients.size)
    for part in parts:
        param.grad = part.clone()
        staging = torch.empty(gradients.size)
        gradients.fill(staging)
        total += staging

    gradients.deliver(total)

    whole = ((parts[0] + parts[1]) + parts[2]) * (1.0 / 3)
    assert param.grad is not None and torch.equal(param.grad, whole)
