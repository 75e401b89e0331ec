"""DDP on one device that all ranks share: dropout and random data, so that streams matter."""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    device = torch.device(args.device)
    dist.init_process_group(args.backend)
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 4)
    )
    model = DistributedDataParallel(layers.to(device, torch.float64), bucket_cap_mb=0.005)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        for micro in range(2):
            with nullcontext() if micro else model.no_sync():
                x = torch.randn(8, 16, dtype=torch.float64, device=device)
                loss = (model(x) - x[:, :4]).square().mean() / 2
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    weights = {name: p.detach().cpu() for name, p in model.module.named_parameters()}
    torch.save(weights, args.out / f"weights{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
