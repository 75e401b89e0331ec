"""A few steps of DDP, and then a model that rank 0 saves alone; the first argument says who is lost
after the last step, and where.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
VICTIMS = {"before": 0, "before-disk": 0, "other": 1}  # killed before rank 0 saves


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save(model: nn.Module, how: str) -> None:
    path = Path("model.pt")
    if how in ("disk", "before-disk"):
        raise OSError(28, "No space left on device")
    if how == "saving" and os.environ["RANK"] == "0":
        path.with_suffix(".part").touch()
        dies()
    torch.save(model.state_dict(), path)


def main() -> None:
    how = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(10 + rank)
    for _ in range(STEPS):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    victim = VICTIMS.get(how)
    if rank == victim:
        dies()
    dist.barrier()
    if rank == 0:
        save(model.module, how)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
