"""Keeps a mean of its losses, and past features: both are written after the backward."""

import argparse
import os
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, KEPT, PACE_S = 16, 32, 0.8
STATS = {"mean": 1.0, "rows": 0}


class State:
    """A plain object of the script's own."""

    scale = 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True)
    args, _ = parser.parse_known_args()
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank, world, pace = dist.get_rank(), dist.get_world_size(), threading.Event()
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)))
    data = TensorDataset(torch.randn(96, WIDTH))
    bank, at, state = F.normalize(torch.randn(KEPT, 4), dim=-1), 0, State()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data, world, rank, seed=1)
    step = 0
    torch.manual_seed(100 + rank)
    while step < args.steps:
        sampler.set_epoch(step)
        for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            features = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1)
            likeness = features @ bank.T / 0.5
            loss = F.cross_entropy(likeness, likeness.detach().argmin(1)) * state.scale
            (loss / (0.5 + STATS["mean"])).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            STATS["mean"] = 0.9 * STATS["mean"] + 0.1 * loss.item()
            STATS["rows"] += len(x)
            state.scale = 0.5 * state.scale + 0.5 / (1 + loss.item())
            bank[at : at + len(x)] = features.detach()
            at = (at + len(x)) % KEPT
            step += 1
            if not os.path.exists(os.path.join(args.out, "go")):
                pace.wait(PACE_S)
    torch.save(model.module.state_dict(), os.path.join(args.out, f"weights{rank}.pt"))


main()
