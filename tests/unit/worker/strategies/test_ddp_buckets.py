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


def test_a_gradient_lies_in_a_bucket_in_the_order_of_its_parameters_memory() -> None:
    """As with DDP: gloo's order of additions depends on an element's place."""
    columns = torch.nn.Parameter(torch.zeros(3, 2).t())
    apart = torch.nn.Parameter(torch.zeros(2, 6)[:, ::2])
    gradients = Gradients(params=[columns, apart], replicas=1)
    memory, rows = torch.arange(6.0), torch.arange(6.0, 12.0)
    columns.grad, apart.grad = memory.view(3, 2).t(), rows.view(2, 3)
    staging = torch.empty(gradients.size)

    gradients.fill(staging)
    columns.grad, apart.grad = torch.zeros_like(columns), torch.zeros_like(apart)
    gradients.deliver(staging)

    assert staging.tolist() == list(range(12))
    assert torch.equal(columns.grad, memory.view(3, 2).t())
    assert torch.equal(apart.grad, rows.view(2, 3))
