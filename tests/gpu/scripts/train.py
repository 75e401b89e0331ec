"""Trains on one device that all ranks share: dropout and random data, so that streams matter."""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--alike", action="store_true", help="every microbatch is the same one")
    parser.add_argument("--wrap", choices=("ddp", "fsdp1", "fsdp2", "hand"), default="ddp")
    return parser.parse_args()


def wrapped(layers: nn.Module, how: str, device: torch.device) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(layers, bucket_cap_mb=0.005)
    if how == "hand":
        return layers
    shape = (dist.get_world_size(), 1) if how == "fsdp2" else (1, dist.get_world_size())
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    if how == "fsdp2":
        fully_shard(layers, mesh=mesh)
        return layers
    hybrid = ShardingStrategy.HYBRID_SHARD
    return FullyShardedDataParallel(layers, device_mesh=mesh, sharding_strategy=hybrid)


def main() -> None:
    args = arguments()
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # NCCL takes no two ranks of one device of one host: so each is a host by itself.
    os.environ["NCCL_HOSTID"] = f"host-of-rank-{os.environ['RANK']}"
    dist.init_process_group(args.backend)
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Linear(16, 64),
        nn.BatchNorm1d(64),
        nn.Tanh(),
        nn.Dropout(0.0 if args.alike else 0.2),
        nn.Linear(64, 4),
    )
    model = wrapped(layers.to(device, torch.float64), args.wrap, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    same = torch.linspace(-1, 1, 8 * 16, dtype=torch.float64, device=device).sin().view(8, 16)
    for _ in range(args.steps):
        optimizer.zero_grad()
        for micro in range(2):
            waits = micro == 0 and isinstance(model, DistributedDataParallel)
            with model.no_sync() if waits else nullcontext():
                x = torch.randn(8, 16, dtype=torch.float64, device=device)
                x = same if args.alike else x
                loss = (model(x) - x[:, :4]).square().mean() / 2
                loss.backward()
        if args.wrap == "hand":
            for param in model.parameters():
                dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if args.wrap == "ddp":
        weights = {name: p.detach().cpu() for name, p in model.module.named_parameters()}
        torch.save(weights, args.out / f"weights{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
