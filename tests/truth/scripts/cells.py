"""A hook reads a variable that the loop binds anew in each iteration: `cells.py OUT WAY`."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

out, way = sys.argv[1:]
STEPS, BATCH = 10, 4


def main():
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    xs = torch.randn(STEPS * BATCH * world, 8)
    data = TensorDataset(xs, xs.square().sum(1, keepdim=True))
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    share = 1.0
    if way == "forward":
        net[1].register_forward_hook(lambda module, inputs, output: output * share)
    else:
        for param in net.parameters():
            param.register_hook(lambda gradient: gradient * share)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    for x, y in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
        share = 1.0 + 0.3 * float(x.mean())
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


main()
