"""Every collective that a script may call, as a function of one tensor."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def all_gather(mine: torch.Tensor, size: int) -> Any:
    outs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(outs, mine)
    return outs


def all_gather_into(mine: torch.Tensor, size: int) -> Any:
    mine = mine if mine.dim() else mine.view(1)
    out = mine.new_zeros((size * mine.size(0), *mine.shape[1:]))
    dist.all_gather_into_tensor(out, mine)
    return out


def gather(mine: torch.Tensor, size: int) -> Any:
    outs = [torch.zeros_like(mine) for _ in range(size)] if dist.get_rank() == 1 else None
    dist.gather(mine, outs, dst=1)
    return outs


def scatter(mine: torch.Tensor, size: int) -> Any:
    out = torch.zeros_like(mine)
    parts = [(mine + at).to(mine.dtype) for at in range(size)]
    dist.scatter(out, parts if dist.get_rank() == 1 else None, src=1)
    return out


def reduce(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    dist.reduce(mine, dst=1)
    return mine if dist.get_rank() == 1 else None


def broadcast(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    dist.broadcast(mine, src=1)
    return mine


def reduce_scatter(mine: torch.Tensor, size: int) -> Any:
    out = torch.zeros_like(mine)
    dist.reduce_scatter(out, [mine] * size)
    return out


def reduce_scatter_tensor(mine: torch.Tensor, size: int) -> Any:
    out = torch.zeros_like(mine)
    dist.reduce_scatter_tensor(out, torch.cat([mine] * size) if mine.dim() else mine.repeat(size))
    return out


def all_to_all(mine: torch.Tensor, size: int) -> Any:
    outs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_to_all(outs, [mine] * size)
    return outs


def all_to_all_single(mine: torch.Tensor, size: int) -> Any:
    source = torch.cat([mine] * size) if mine.dim() else mine.repeat(size)
    out = torch.zeros_like(source)
    dist.all_to_all_single(out, source)
    return out


def all_reduce(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    dist.all_reduce(mine)
    return mine


def all_reduce_mean(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    if mine.is_floating_point():
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
    return mine


def all_reduce_max(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    if not mine.is_complex():
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine


def later(mine: torch.Tensor, size: int) -> Any:
    mine = mine.clone()
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    return [mine, work.get_future().value()[0], work.result()[0]]


def by_functional(mine: torch.Tensor, size: int) -> Any:
    mine = mine.reshape(-1)
    stacked = torch.cat([mine] * size)
    outs = [
        functional.all_reduce(mine, "sum", dist.group.WORLD),
        functional.all_gather_tensor(mine, 0, dist.group.WORLD),
        functional.reduce_scatter_tensor(stacked, "sum", 0, dist.group.WORLD),
        functional.all_to_all_single(stacked, None, None, dist.group.WORLD),
        functional.broadcast(mine, 1, dist.group.WORLD),
        *functional.all_gather_into_tensor_coalesced([mine, mine], dist.group.WORLD),
    ]
    return [torch.ops._c10d_functional.wait_tensor(out).clone() for out in outs]


FUNCTIONS = (
    all_reduce,
    all_reduce_mean,
    all_reduce_max,
    later,
    reduce,
    broadcast,
    all_gather,
    all_gather_into,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
)
