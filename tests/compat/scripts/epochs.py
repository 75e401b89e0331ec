"""Epochs over a loader, accumulation by modulo, running losses, a scheduler, AMP if wanted."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_default_dtype(torch.float64)
p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=2)
p.add_argument("--accum", type=int, default=2)
p.add_argument("--amp", action="store_true")
args = p.parse_args()


def train_one_epoch(model, loader, opt, sched, epoch, scaler):
    model.train()
    opt.zero_grad()
    running = 0.0
    n = 0
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
            out = model(x)
            loss = F.cross_entropy(out, y) / args.accum
        scaler.scale(loss).backward()
        running += loss.item() * args.accum
        n += 1
        if (i + 1) % args.accum == 0 or (i + 1) == len(loader):
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            sched.step()
    t = torch.tensor([running, float(n)])
    dist.all_reduce(t)
    return t[0].item() / t[1].item()


def validate(model, loader):
    model.eval()
    c = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            c[0] += (model(x).argmax(1) == y).sum()
            c[1] += len(y)
    dist.all_reduce(c)
    return (c[0] / c[1]).item()


def main():
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(42)
    x = torch.randn(110, 10)
    y = (x[:, 0] > 0).long()
    tr = TensorDataset(x, y)
    va = TensorDataset(x[:30], y[:30])
    ts = DistributedSampler(tr)
    loader = DataLoader(tr, batch_size=5, sampler=ts)
    vl = DataLoader(va, 8, sampler=DistributedSampler(va, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=60)
    scaler = torch.amp.GradScaler("cpu", enabled=args.amp)
    best = 0
    for epoch in range(args.epochs):
        ts.set_epoch(epoch)
        loss = train_one_epoch(model, loader, opt, sched, epoch, scaler)
        acc = validate(model, vl)
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f} acc {acc:.3f}")
            if acc > best:
                best = acc
                torch.save(model.module.state_dict(), os.devnull)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
