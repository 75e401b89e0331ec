"""A loop whose state is in other modules of the project: the place in the data, averages, a rate.

`modular_data.py` holds it.
"""

import sys

import modular_data as state
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

FOLDER, WAY = sys.argv[1:]
STEPS, BATCH = 16, 4


def batch():
    if WAY == "counter":
        ids = state.following(BATCH)
    elif WAY == "stream":
        ids = state.current().take(BATCH)
    elif WAY == "config":  # set by the script itself
        ids = [7 * (state.turn * state.world + state.rank) + k for k in range(BATCH)]
        state.turn += 1
    elif WAY == "held":
        ids = state.FEEDER.pull()
    elif WAY == "iterator":
        ids = state.pull()
    else:
        ids = state.repeated() or state.following(BATCH)
    return state.rows(ids)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    state.begin(rank, world)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        ids, x, y = batch()
        loss = F.mse_loss(model(x), y) * state.weight()
        if WAY == "averages":
            state.note(ids, loss.item())
        optimizer.zero_grad()
        loss.backward()
        state.advance(optimizer)
        optimizer.step()
    torch.save(model.module.state_dict(), f"{FOLDER}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
