"""The way of YOLOv5: rank 0 alone averages weights, validates, saves, and tells when to stop.

What it takes for that only rank 0 makes, before training. A run ends when validation gets no
better, which an object tells that rank 0 broadcasts after each epoch. After each step it also says
the same thing again, in code that nobody can tell to be meant for it alone.
"""

import copy
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK = int(os.getenv("RANK", -1))
dist.init_process_group("gloo")
torch.manual_seed(2)
torch.set_default_dtype(torch.float64)


class Average:
    """Of weights, kept by rank 0."""

    def __init__(self, model, decay=0.5):
        self.ema = copy.deepcopy(model.module).eval()
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for mine, theirs in zip(self.ema.parameters(), model.module.parameters(), strict=True):
            mine.mul_(self.decay).add_(theirs, alpha=1 - self.decay)


class EarlyStopping:
    def __init__(self, patience=1):
        self.best, self.best_epoch, self.patience = float("inf"), 0, patience

    def check(self, epoch, loss):
        if loss <= self.best:
            self.best, self.best_epoch = loss, epoch
        return epoch - self.best_epoch >= self.patience


@torch.no_grad()
def validate(model, loader):
    return sum(F.mse_loss(model(x), y).item() for x, y in loader) / len(loader)


def train(epochs):
    if RANK in {-1, 0}:
        folder = Path(tempfile.mkdtemp())
        log = open(folder / "results.csv", "w")
    inputs = torch.randn(96, 8)
    data = TensorDataset(inputs, inputs.roll(1, 1))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 8))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(model)
    average = Average(model) if RANK in {-1, 0} else None
    if RANK in {-1, 0}:
        seen = TensorDataset(inputs[:32], inputs[:32].roll(1, 1))
        val_loader = DataLoader(seen, batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stopper, stop, boss = EarlyStopping(), False, RANK == 0
    for epoch in range(epochs):
        model.train()
        sampler.set_epoch(epoch)
        for x, y in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if average:
                average.update(model)
            pause, word = torch.zeros(1), ["on" if boss else None]
            if boss:
                pause.fill_(epoch > 100)
            dist.broadcast(pause, src=0)
            dist.broadcast_object_list(word, src=0)
            assert not pause and word == ["on"]
        if RANK in {-1, 0}:
            loss = validate(average.ema, val_loader)
            if epoch > 1:
                loss = epoch  # as if it got worse from here on
            stop = stopper.check(epoch, loss)
            torch.save({"ema": average.ema.state_dict(), "epoch": epoch}, folder / "last.pt")
            print(f"{epoch},{loss}", file=log, flush=True)
        broadcast_list = [stop if RANK == 0 else None]
        dist.broadcast_object_list(broadcast_list, 0)
        if RANK != 0:
            stop = broadcast_list[0]
        if stop:
            break
    if RANK in {-1, 0}:
        assert torch.load(folder / "last.pt")["epoch"] == epoch
        assert len((folder / "results.csv").read_text().splitlines()) == epoch + 1
        shutil.rmtree(folder)
    return epoch


print(f"stopped in epoch {train(epochs=6)}")
dist.barrier()
dist.destroy_process_group()
