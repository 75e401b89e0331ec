"""A training script that tells the CPU time of its steps; the same file runs under any launcher.

Prints, from rank 0, one JSON line: CPU seconds of each step, summed over all threads and ranks.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def blocks(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers))
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=("hsdp", "ddp"), default="hsdp")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    width = round((args.parameters / args.layers) ** 0.5)
    torch.manual_seed(0)
    model: nn.Module = blocks(width, args.layers)
    if args.strategy == "hsdp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(world * args.batch * 64, width))
    loader = DataLoader(data, batch_size=args.batch, sampler=DistributedSampler(data))
    torch.manual_seed(rank)

    spent: list[float] = []
    batches = iter(loader)
    for step in range(args.steps):
        began = time.process_time()
        for micro in range(args.accumulation):
            if args.strategy == "hsdp":
                model.set_requires_all_reduce(micro == args.accumulation - 1)
            else:
                model.require_backward_grad_sync = micro == args.accumulation - 1
            try:
                (x,) = next(batches)
            except StopIteration:
                batches = iter(loader)
                (x,) = next(batches)
            loss = F.mse_loss(model(x), x) / args.accumulation
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        spent.append(time.process_time() - began)
    total = torch.tensor(spent)
    dist.all_reduce(total)
    if rank == 0:
        print(json.dumps(total.tolist()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
