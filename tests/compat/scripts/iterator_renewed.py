"""`next(it)` with a fresh iterator at the end of data, no_sync, a loss reduced by microbatch."""

import csv
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_default_dtype(torch.float64)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    ds = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, batch_size=4, sampler=sampler, drop_last=True)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=20)
    it = iter(loader)
    epoch = 0
    accum = 3
    if rank == 0:
        log = csv.writer(open(os.devnull, "w"))
    for step in range(12):
        total = 0.0
        for micro in range(accum):
            try:
                xb, yb = next(it)
            except StopIteration:
                epoch += 1
                sampler.set_epoch(epoch)
                it = iter(loader)
                xb, yb = next(it)
            ctx = model.no_sync() if micro < accum - 1 else nullcontext()
            with ctx:
                loss = F.mse_loss(model(xb), yb) / accum
                loss.backward()
            shown = loss.detach().clone()
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
            total += shown.item()
        gn = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        if rank == 0:
            log.writerow([step, total, float(gn)])
            print(f"step {step} loss {total:.5f}")
        dist.barrier()
    dist.destroy_process_group()


main()
