"""Each rank reads its own rows in turn; the place is held by `places.py OUT WAY`."""

import itertools
import queue
import sqlite3
import subprocess
import sys
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, ROWS, BATCH = 12, 360, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(ROWS, 8), torch.randn(ROWS, 2)
mine = list(range(rank, ROWS, world))


def closure():
    at = 0

    def batch():
        nonlocal at
        at += BATCH
        return mine[at - BATCH : at]

    return batch


def attribute():
    def batch():
        batch.at += BATCH
        return mine[batch.at - BATCH : batch.at]

    batch.at = 0
    return batch


def count():
    places = itertools.count()
    return lambda: [mine[next(places)] for _ in range(BATCH)]


class Cursor:
    __slots__ = ("at",)

    def __init__(self):
        self.at = 0

    def batch(self):
        self.at += BATCH
        return mine[self.at - BATCH : self.at]


def in_queue():
    rows = queue.SimpleQueue()
    for row in mine:
        rows.put(row)
    return lambda: [rows.get() for _ in range(BATCH)]


def prefetched():
    ready = queue.Queue(maxsize=3)

    def fetch():
        for at in range(0, len(mine), BATCH):
            ready.put(mine[at : at + BATCH])

    threading.Thread(target=fetch, daemon=True).start()
    return ready.get


def in_file():
    path = f"{out}/rows{rank}.txt"
    with open(path, "w") as file:
        file.writelines(f"{row}\n" for row in mine)
    file = open(path)
    return lambda: [int(file.readline()) for _ in range(BATCH)]


def through_pipe():
    program = f"for row in range({rank}, {ROWS}, {world}): print(row, flush=True)"
    reader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    return lambda: [int(reader.stdout.readline()) for _ in range(BATCH)]


def in_database():
    rows = sqlite3.connect(":memory:")
    rows.execute("create table row (number integer)")
    rows.executemany("insert into row values (?)", [(row,) for row in mine])
    found = rows.execute("select number from row order by number")
    return lambda: [row for (row,) in found.fetchmany(BATCH)]


WAYS = {
    "closure": closure,
    "attribute": attribute,
    "count": count,
    "slots": lambda: Cursor().batch,
    "queue": in_queue,
    "thread": prefetched,
    "file": in_file,
    "pipe": through_pipe,
    "database": in_database,
}
batch = WAYS[way]()
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(STEPS):
    rows = batch()
    optimizer.zero_grad()
    F.mse_loss(model(xs[rows]), ys[rows]).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
