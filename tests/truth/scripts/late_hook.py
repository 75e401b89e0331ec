"""A script that begins in mid-run to look at gradients in its backward: `late_hook.py OUT WHEN`."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
STEPS, BATCH, FROM = 10, 4, 4

out, when = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
model = DDP(net, bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
norms = []


def look(*_):
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: norms.append(float(p.grad.norm())))


for step in range(STEPS):
    if step == FROM and when == "between":
        look()
    x = torch.randn(BATCH, 8)
    y = model(x)
    if step == FROM and when == "forward":
        look()
    if step == FROM and when == "backward":
        y.register_hook(look)
    loss = F.mse_loss(y, x[:, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.17g} {sum(norms):.17g}\n", end="", flush=True)
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
