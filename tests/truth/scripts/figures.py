"""A script that gathers figures by name and device; rank 0 has more: `figures.py OUT WAY`."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
STEPS, PARTS, BATCH, EVERY = 12, 2, 4, 5
COUNTERS, TOTALS = {}, {}


def report(name, values):
    by_device = COUNTERS.setdefault(name, {})
    values = torch.as_tensor(values, dtype=torch.float64).detach().flatten()
    if values.numel():
        counter = by_device.setdefault(values.device, torch.zeros(2))
        counter += torch.stack([torch.ones_like(values).sum(), values.sum()])


def gathered():
    found = [sum(one.values(), torch.zeros(2)) for one in COUNTERS.values()]
    for one in COUNTERS.values():
        for counter in one.values():
            counter.zero_()
    sums = torch.stack(found)
    dist.all_reduce(sums)
    for name, delta in zip(COUNTERS, sums, strict=True):
        TOTALS[name] = TOTALS.get(name, torch.zeros(2)) + delta


out = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
for step in range(STEPS):
    optimizer.zero_grad()
    for part in range(PARTS):
        x = torch.randn(BATCH, 8)
        last = part == PARTS - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(x), x[:, :2]) / PARTS
            report("loss", loss)
            loss.backward()
    optimizer.step()
    if step % EVERY == 0:
        report("step", step if rank == 0 else [])
        gathered()
        if rank == 0:
            print(f"step {step} {len(TOTALS)} {TOTALS['step'].tolist()}\n", end="", flush=True)
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
