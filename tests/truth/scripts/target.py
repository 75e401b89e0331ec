"""A target network, sharded as the model is, says what is learned: its forward comes first."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BATCH, AFTER = 10, 4, 3

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    fully_shard(net[0], mesh=mesh)
    return fully_shard(net, mesh=mesh, reshard_after_forward=True)


online, target = network(), network()
optimizer = torch.optim.Adam(online.parameters(), lr=0.02)
states = torch.randn(STEPS * world * BATCH + 1, 8, generator=torch.Generator().manual_seed(2))
torch.manual_seed(3 + rank)
for step in range(STEPS):
    first = (step * world + rank) * BATCH
    now, then = states[first : first + BATCH], states[first + 1 : first + BATCH + 1]
    with torch.no_grad():
        goal = now.sum(1) + 0.9 * target(then + 0.1 * torch.randn_like(then)).amax(1)
    loss = F.smooth_l1_loss(online(now).amax(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % AFTER == AFTER - 1:
        with torch.no_grad():
            for theirs, ours in zip(target.parameters(), online.parameters(), strict=True):
                theirs.copy_(ours)
weights = {name: value.full_tensor() for name, value in online.state_dict().items()}
torch.save(weights, f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
