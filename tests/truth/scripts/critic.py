"""WGAN-GP: two steps of a critic, then one of the generator, for which the critic is frozen."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH = 5, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
real = torch.randn(2 * STEPS * BATCH * world, 4) @ torch.randn(4, 4) + 1
generator = DDP(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4)))
critic = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.0, 0.9))
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))
torch.manual_seed(70 + rank)


def penalty(x, fake):
    share = torch.rand(len(x), 1)
    between = (share * x + (1 - share) * fake).requires_grad_()
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    return 10 * ((slope.norm(dim=1) - 1) ** 2).mean()


def norm(model):
    return float(torch.stack([p.grad.norm() for p in model.parameters()]).norm())


at = 0
for _ in range(STEPS):
    for p in critic.parameters():
        p.requires_grad_(True)
    for _ in range(2):
        x = real[[(at + number) * world + rank for number in range(BATCH)]]
        at += BATCH
        with torch.no_grad():
            fake = generator(torch.randn(BATCH, 3))
        loss = critic(fake).mean() - critic(x).mean() + penalty(x, fake)
        for_critic.zero_grad()
        loss.backward()
        assert norm(critic) > 0
        for_critic.step()
    for p in critic.parameters():
        p.requires_grad_(False)
    loss = -critic(generator(torch.randn(BATCH, 3))).mean()
    for_generator.zero_grad()
    loss.backward()
    assert norm(generator) > 0
    for_generator.step()
both = nn.ModuleList([generator.module, critic.module])
torch.save(both.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
