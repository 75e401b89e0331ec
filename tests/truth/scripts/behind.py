"""HSDP; what a rank remembers bears on its loss behind the model's door: `behind.py OUT WAY`."""

import contextvars
import sys
from collections import defaultdict, deque

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BATCH = 9, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2)
state = {"mean": None, "losses": defaultdict(lambda: deque(maxlen=3))}
hidden = contextvars.ContextVar("mean", default=1.0)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if way == "buffer":
            self.mean.mul_(0.8).add_(0.2 * x.mean(0))
        return x - self.mean


def weight(loss):
    """By what this rank's losses have been."""
    if way == "dict":
        state["mean"] = loss if state["mean"] is None else 0.8 * state["mean"] + 0.2 * loss
        return 1 / state["mean"]
    if way == "deques":
        state["losses"]["train"].append(loss)
        return len(state["losses"]["train"]) / sum(state["losses"]["train"])
    if way == "context":
        hidden.set(0.8 * hidden.get() + 0.2 * loss)
        return 1 / hidden.get()
    return 1.0


model = nn.Sequential(Centred(), nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(5 + rank)
for step in range(STEPS):
    first = BATCH * (step * world + rank)
    optimizer.zero_grad()
    loss = F.mse_loss(model(xs[first : first + BATCH]), ys[first : first + BATCH])
    (loss * weight(loss.item())).backward()
    optimizer.step()
whole = {name: one.full_tensor() for name, one in model.named_parameters()}
torch.save(whole, f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
