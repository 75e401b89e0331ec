"""A model with buffers that torch takes over from rank 0 as a forward begins, checked on rank 0.

Each rank writes what it has at the end to `rankN.pt`, rank 0 after each epoch to `epochN.pt`.
Arguments: microbatches of a step, `used` if the loss depends on a buffer that moves, and
`annealed` if the script changes one between steps.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

accumulated, used, annealed = int(sys.argv[1]), "used" in sys.argv, "annealed" in sys.argv


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.register_buffer("center", torch.zeros(16))
        self.register_buffer("heat", torch.ones(()))
        self.register_buffer("mask", torch.ones(300_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.a(x))
        if used:
            if self.training:
                with torch.no_grad():
                    self.center.mul_(0.9).add_(0.1 * hidden.mean(0))
            hidden = hidden - self.center
        return self.b(torch.relu(hidden / self.heat))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(1)
samples = 4 * world * accumulated * 5
data = TensorDataset(
    torch.randn(samples, 8, generator=generator), torch.randn(samples, 1, generator=generator)
)
sampler = DistributedSampler(data, world, rank)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for at, (x, y) in enumerate(DataLoader(data, batch_size=4, sampler=sampler), 1):
        if at % accumulated:
            with model.no_sync():
                mse_loss(model(x), y).backward()
            continue
        mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if annealed:
            model.module.heat.mul_(0.98)
    if rank == 0:
        torch.save(model.module.state_dict(), f"epoch{epoch}.pt")
torch.save(model.module.state_dict(), f"rank{rank}.pt")
dist.destroy_process_group()
