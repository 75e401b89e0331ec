"""A generator reads lines, tokenizes them as it goes, and yields blocks of equal length."""

import itertools
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, LENGTH, WORDS = 12, 2, 6, 11

torch.set_default_dtype(torch.float64)
out = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
path = f"{out}/text{rank}.txt"
with open(path, "w") as file:
    for line in range(1000):
        if line % world == rank:
            file.write(" ".join(str(line * word % 31) for word in range(1, 3 + line % 7)) + "\n")


def lines():
    with open(path) as file:
        for number, line in enumerate(file):
            yield number, line.split()


def blocks():
    held = []
    for _, words in lines():
        held += [int(word) % WORDS for word in words]
        while len(held) > BATCH * LENGTH:
            yield torch.tensor(held[: BATCH * LENGTH + 1])
            held = held[BATCH * LENGTH :]


torch.manual_seed(0)
model = DDP(
    nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, WORDS))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for block in itertools.islice(blocks(), STEPS):
    optimizer.zero_grad()
    F.cross_entropy(model(block[:-1]), block[1:]).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
