"""Ranks train the heads of a model in another order, or other heads: each keeps a mean of losses.

Under FSDP2 all heads get a gradient on each rank.
"""

import argparse
import os
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HEADS, WIDTH, PACE_S = 3, 16, 0.8


class Head(nn.Module):
    """Weighs its loss by a running mean of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)
        self.calls, self.mean = 0, 1.0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss = F.mse_loss(self.layer(x), y)
        weighted = loss / (0.5 + self.mean) * (1 + 1 / self.calls)
        self.mean = 0.9 * self.mean + 0.1 * loss.item()
        return weighted


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1))
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))

    def forward(self, x: torch.Tensor, y: torch.Tensor, first: int, count: int) -> torch.Tensor:
        x, loss = self.trunk(x), torch.zeros(())
        for number in range(first, first + count):
            loss = loss + self.heads[number % HEADS](x, y)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--shards", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank, world, pace = dist.get_rank(), dist.get_world_size(), threading.Event()
    torch.manual_seed(3)
    net, data = Net(), TensorDataset(torch.randn(96, WIDTH), torch.randn(96, 2))
    slot, count = rank // max(1, args.shards), HEADS if args.shards else 1
    if args.shards:
        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (world // args.shards, args.shards), mesh_dim_names=names)
        model = fully_shard(net, mesh=mesh)
    else:
        model = DDP(net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data, world, rank, seed=1)
    step = 0
    while step < args.steps:
        sampler.set_epoch(step)
        for x, y in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            model(x, y, slot + step, count).backward()
            optimizer.step()
            step += 1
            if not os.path.exists(os.path.join(args.out, "go")):
                pace.wait(PACE_S)
    held = {name: getattr(one, "_local_tensor", one) for name, one in net.state_dict().items()}
    torch.save(held, os.path.join(args.out, f"weights{rank}.pt"))


main()
