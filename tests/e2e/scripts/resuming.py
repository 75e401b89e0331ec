"""Saves a checkpoint every ten steps and fails once on all ranks; started again, it goes on from
the checkpoint.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, FAILS_AT = 40, 10, 27


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    newest, first = folder / "newest.pt", 0
    if newest.exists():
        saved = torch.load(newest)
        model.module.load_state_dict(saved["model"])
        first = saved["step"] + 1
    for step in range(first, STEPS):
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == EVERY - 1 and rank == 0:
            torch.save({"model": model.module.state_dict(), "step": step}, newest)
        if step == FAILS_AT and first == 0:
            raise RuntimeError("a full disk")
    dist.destroy_process_group()


main()
