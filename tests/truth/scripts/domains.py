"""Domain-adversarial training: a number in a module, each rank's own, weighs gradients alone."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BATCH, SIZES = 8, 4, (0.1, 0.5, 1.0, 2.0)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.weight * gradient, None


class Reversal(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return Reverse.apply(x, self.weight)


torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(STEPS * world * BATCH, 8)
ys = xs.square().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), Reversal(SIZES[rank]), nn.Linear(12, 1))
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
for layer in (model[0], model[3], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    first = (step * world + rank) * BATCH
    loss = F.mse_loss(model(xs[first : first + BATCH]), ys[first : first + BATCH])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = {name: value.full_tensor() for name, value in model.state_dict().items()}
torch.save(state, f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
