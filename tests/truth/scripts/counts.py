"""From a step on the last replica takes two microbatches, others one: `counts.py OUT WAY`.

WAY is `ddp`, `fsdp1` or `fsdp2`; a replica of `fsdp1` has two ranks.
"""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, LATER, BATCH = 9, 5, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(2 * STEPS, world, BATCH, 8), torch.randn(2 * STEPS, world, BATCH, 2)
inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
shards = 2 if way == "fsdp1" else 1
mesh = init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("replicate", "shard"))
if way == "ddp":
    model = DDP(inner)
elif way == "fsdp1":
    hybrid = ShardingStrategy.HYBRID_SHARD
    model = FullyShardedDataParallel(
        inner, device_mesh=mesh, sharding_strategy=hybrid, device_id=torch.device("cpu")
    )
else:
    model = fully_shard(inner, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = micro = 0
for x, y in zip(xs, ys, strict=True):
    count = 2 if step >= LATER and rank >= world - shards else 1
    last = micro + 1 == count
    if way == "fsdp2":
        model.set_requires_gradient_sync(last)
    apart = not last and way != "fsdp2"
    with model.no_sync() if apart else contextlib.nullcontext():
        (F.mse_loss(model(x[rank]), y[rank]) / count).backward()
    micro += 1
    if last:
        optimizer.step()
        optimizer.zero_grad()
        step, micro = step + 1, 0
        if step == STEPS:
            break
torch.save({}, f"{out}/weights{rank}.pt")
dist.destroy_process_group()
