"""Trains a model whose gradients fill more than one of DDP's first buckets: WAY, and a FILE for its
weights.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, STEPS = 300, 5, 7
OPTIONS = {
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "views-zeroed": {"gradient_as_bucket_view": True},
}


def reduce(way: str, model: nn.Module) -> None:
    held = [p.grad for p in model.parameters() if p.grad is not None]
    world = dist.get_world_size()
    if way == "by-hand-divided":
        for gradient in held:
            gradient /= world
            dist.all_reduce(gradient)
    elif way == "by-hand-multiplied":
        for gradient in held:
            gradient *= 1 / world
        for gradient in held:
            dist.all_reduce(gradient)
    elif way == "by-hand":
        for gradient in held:
            dist.all_reduce(gradient)
            gradient /= world
    elif way in ("by-hand-flat", "by-hand-some"):
        flat = torch.cat([gradient.flatten() for gradient in held])
        dist.all_reduce(flat)
        flat /= world
    elif way == "by-hand-flat-divided":
        flat = torch.cat([gradient.flatten() for gradient in held]) / world
        dist.all_reduce(flat)
    if way.startswith("by-hand-flat") or way == "by-hand-some":
        parts = flat.split([gradient.numel() for gradient in held])
        for gradient, part in zip(held, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def main(way: str, path: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    net = nn.Sequential(*layers)
    column_by_column = net[0][0].weight.detach().t().contiguous().t()
    net[0][0].weight = nn.Parameter(column_by_column)  # as `qr` and `channels_last` leave it
    by_hand = way.startswith("by-hand")
    model = net if by_hand else DistributedDataParallel(net, **OPTIONS.get(way, {}))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(9 + dist.get_rank())
    for step in range(STEPS):
        short = way == "by-hand-some" and step % 3 == 2  # the last layers get no gradients
        trained = model[:3] if short else model
        trained(torch.randn(16, WIDTH)).pow(2).sum().backward()
        reduce(way, model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=way != "views-zeroed")
    if dist.get_rank() == 0:
        torch.save({name: one.detach().clone() for name, one in net.named_parameters()}, path)
    dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
