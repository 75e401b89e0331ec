"""A generator and a critic, each in DDP, each with an optimizer of its own."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

STEPS, BATCH = 10, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = torch.randn(STEPS * BATCH * world, 6)
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
maker = DDP(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)))
critic = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
makes = torch.optim.SGD(maker.parameters(), lr=0.05)
judges = torch.optim.SGD(critic.parameters(), lr=0.05)
torch.manual_seed(5 + rank)
for real in loader:
    judges.zero_grad()
    fake = maker(torch.randn(BATCH, 3))
    truth, lie = critic(real), critic(fake.detach())
    (F.softplus(-truth).mean() + F.softplus(lie).mean()).backward()
    judges.step()
    makes.zero_grad()
    F.softplus(-critic(fake)).mean().backward()
    makes.step()
weights = {**maker.state_dict(prefix="maker."), **critic.state_dict(prefix="critic.")}
torch.save(weights, f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
