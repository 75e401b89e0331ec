"""A GAN whose loader comes to its end in the midst of an iteration, and is gone over anew there."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH, BATCHES = 7, 4, 8

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(BATCHES * BATCH * world, 4) + 1)
sampler = DistributedSampler(data)
loader = DataLoader(data, BATCH, sampler=sampler)
generator = DDP(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4)))
critic = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.0, 0.9))
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))
torch.manual_seed(70 + rank)
batches, epoch, losses = iter(loader), 0, []
for _ in range(STEPS):
    for _ in range(2):
        try:
            (x,) = next(batches)
        except StopIteration:
            epoch += 1
            sampler.set_epoch(epoch)
            batches = iter(loader)
            (x,) = next(batches)
        with torch.no_grad():
            fake = generator(torch.randn(BATCH, 3))
        loss = critic(fake).mean() - critic(x).mean()
        for_critic.zero_grad()
        loss.backward()
        losses.append(loss.item())
        for_critic.step()
    loss = -critic.module(generator(torch.randn(BATCH, 3))).mean()
    for_generator.zero_grad()
    loss.backward()
    for_generator.step()
both = nn.ModuleList([generator.module, critic.module])
torch.save(both.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
