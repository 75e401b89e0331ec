"""Two models in DDP that train each other: a step of each in an iteration.

The generator's forward comes before the discriminator's backward, and its backward after it.
`alone` as an argument: it is judged by the discriminator beside DDP, whose parameters are frozen.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

alone = "alone" in sys.argv

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
torch.set_default_dtype(torch.float64)
generator = DistributedDataParallel(
    nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
)
judge = DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
)
makes = torch.optim.Adam(generator.parameters(), 2e-3)
judges = torch.optim.Adam(judge.parameters(), 2e-3)
right = nn.BCEWithLogitsLoss()
data = TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(0)) + 1)
sampler = DistributedSampler(data, seed=5)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (real,) in DataLoader(data, 8, sampler=sampler):
        yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        judges.zero_grad()
        fake = generator(torch.randn(len(real), 6))
        found = judge(torch.cat([real, fake.detach()]))
        right(found, torch.cat([yes, no])).backward()
        judges.step()
        makes.zero_grad()
        for parameter in judge.parameters():
            parameter.requires_grad_(not alone)
        right((judge.module if alone else judge)(fake), yes).backward()
        for parameter in judge.parameters():
            parameter.requires_grad_(True)
        makes.step()
parts = [*generator.module.state_dict().values(), *judge.module.state_dict().values()]
total = sum(part.double().abs().sum() for part in parts)
print(f"rank {rank} weights {total.item():.12f}", flush=True)
dist.destroy_process_group()
