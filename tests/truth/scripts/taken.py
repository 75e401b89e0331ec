"""The loop's body asks for its batches: `taken.py OUT WAY`.

WAY gives them: an iterator `own` of the script's, or the same over a `file` or a `queue`. Survivors
that make up unequally many microbatches must still come to their end together.
"""

import queue
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

EPOCHS, STEPS, BATCH = 2, 8, 5

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
mine = torch.randn(STEPS * BATCH * world, 4)[rank::world].split(BATCH)


class Own:
    def __init__(self):
        self.at = 0

    def __next__(self):
        self.at += 1
        if self.at > STEPS:
            raise StopIteration
        return mine[self.at - 1]


class Lines:
    def __init__(self):
        path = f"{out}/rows{rank}.txt"
        with open(path, "w") as file:
            file.writelines(f"{number}\n" for number in range(STEPS))
        self.file = open(path)

    def __next__(self):
        return mine[int(next(self.file))]


class Queued:
    def __init__(self):
        self.batches = queue.Queue()
        for batch in mine:
            self.batches.put(batch)

    def __next__(self):
        if self.batches.empty():
            raise StopIteration
        return self.batches.get()


made = {"own": Own, "file": Lines, "queue": Queued}[way]
model = DDP(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(EPOCHS):
    batches = made()
    while True:
        try:
            x = next(batches)
        except StopIteration:
            break
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
