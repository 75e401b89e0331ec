"""Two phases of training. Argument `in-training`: groups are destroyed in the midst of the second
one, and it goes on; else they are destroyed after the first one, and made anew.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def train(model: torch.nn.Module, phase: int, destroyed_at: int = STEPS) -> None:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    rank = dist.get_rank()
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * phase + 10 * step + rank)
        x = torch.randn(4, 8, generator=generator)
        mse_loss(wrapped(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == destroyed_at:
            dist.destroy_process_group()
    if dist.is_initialized():
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        print(f"rank {rank} met {int(ranks)}\n", end="", flush=True)


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
dist.init_process_group("gloo")
if "in-training" in sys.argv:
    train(model, 0)
    train(model, 1, destroyed_at=2)
else:
    train(model, 0)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    train(model, 1)
    dist.destroy_process_group()
total = sum(p.double().sum().item() for p in model.parameters())
print(f"weights {total:.9f}\n", end="", flush=True)  # in one write: ranks share a terminal
