"""DDP over gloo, one process on each node, from its checkpoint on: `resuming.py STEPS FILE`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY = 20


def main() -> None:
    steps, newest = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    first = 0
    if newest.exists():
        saved = torch.load(newest)
        model.module.load_state_dict(saved["model"])
        first = saved["step"] + 1
    if rank == 0:
        print(f"from step {first} on", flush=True)
    for step in range(first, steps):
        optimizer.zero_grad()
        model(torch.randn(128, 64)).square().mean().backward()
        optimizer.step()
        if step % EVERY == EVERY - 1 and rank == 0:
            draft = newest.with_suffix(".draft")
            torch.save({"model": model.module.state_dict(), "step": step}, draft)
            draft.replace(newest)
    dist.destroy_process_group()


main()
