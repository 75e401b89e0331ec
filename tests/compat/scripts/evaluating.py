"""llama2.c's way: batches of an endless generator, a loop over microbatches, evaluation before it.

`all` ranks evaluate, or `rank0` alone; `ahead`: the next batch is fetched during the forward pass;
`pieces`: nanoGPT's batches, and an evaluation that only computes with gradients off;
`indexed`: all batches of a step are drawn first and taken by their number, so a step is one;
`top`: one microbatch a step, with the evaluation in the same loop.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

way = sys.argv[1]
rank = int(os.environ["RANK"])
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
inputs = torch.randn(160, 8)


class Task:
    @staticmethod
    def batches(split, shuffle=False):
        x = inputs if split == "train" else inputs[:12]
        data = TensorDataset(x, x.sum(dim=1, keepdim=True))
        sampler = DistributedSampler(data, seed=1) if split == "train" else None
        loader = DataLoader(data, 4, sampler=sampler, shuffle=shuffle)
        while True:
            for x, y in loader:
                yield x, y


dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
ddp = DDP(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
torch.manual_seed(1337 + rank)


def piece():
    rows = torch.randint(len(inputs), (4,))
    return inputs[rows], inputs[rows].sum(dim=1, keepdim=True)


def go_through(loader):
    model.eval()
    loss = 0.0
    for x, y in loader:
        with torch.no_grad():
            loss += F.mse_loss(model(x), y).item()
    model.train()
    return loss


@torch.no_grad()
def evaluate():
    model.eval()
    batches = Task.batches("val", shuffle=True)
    loss = 0.0
    for _ in range(3):
        x, y = next(batches)
        loss += F.mse_loss(model(x), y).item()
    model.train()
    return loss


batches = Task.batches("train")
if way == "ahead":
    x, y = next(batches)
step = 0
while step < 12:
    if step % 4 == 0 and way == "all":
        evaluate()
    if step % 4 == 0 and way == "pieces":
        go_through(DataLoader(TensorDataset(inputs[:16], inputs[:16, :1]), 4))
    if step % 4 == 0 and rank == 0:
        evaluate()
    drawn = [next(batches) for _ in range(2)] if way == "indexed" else []
    if way == "top":
        x, y = next(batches)
        F.mse_loss(ddp(x), y).backward()
    for micro in range(0 if way == "top" else 2):
        ddp.require_backward_grad_sync = micro == 1
        if drawn:
            x, y = drawn[micro]
        elif way == "pieces":
            x, y = piece()
        elif way != "ahead":
            x, y = next(batches)
        loss = F.mse_loss(ddp(x), y) / 2
        if way == "ahead":
            x, y = next(batches)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
dist.barrier()
dist.destroy_process_group()
