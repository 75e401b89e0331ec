"""A script that counts what is asked of torch, and steers by it: `modes.py OUT WAY`."""

import collections
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.overrides import TorchFunctionMode

torch.set_default_dtype(torch.float64)
STEPS, BATCH = 10, 4


class Functions(TorchFunctionMode):
    def __init__(self):
        self.asked = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.asked[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))


out, way = sys.argv[1:]
mode = Functions()
if way == "around":  # as a script does that maps one device to another
    mode.__enter__()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 16), nn.Linear(16, 2))
model = DDP(net, bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
if way == "inside":
    mode.__enter__()
for step in range(STEPS):
    x = torch.randn(BATCH, 8)
    loss = F.mse_loss(model(x), x[:, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.param_groups[0]["lr"] = 0.05 / (1 + sum(mode.asked.values()) / 100)
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"step {step} loss {mean.item():.17g}", flush=True)
mode.__exit__(None, None, None)
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
