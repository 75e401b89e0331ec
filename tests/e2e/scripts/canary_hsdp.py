"""A training script with a canary: its gradient shows which microbatches are in a step.

`canary` has one element for each (slot, index) of a step. A microbatch adds 1 to the gradient of
its own element, so after the reduction every element must be 1 / replicas: less, and the microbatch
is missing or has the wrong weight; more, and it was counted twice. Written as for torchrun.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(640, 16, generator=generator, dtype=torch.float64)
        self.y = torch.randn(640, 4, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class Model(nn.Module):
    def __init__(self, identities: int) -> None:
        super().__init__()
        self.canary = nn.Parameter(torch.zeros(identities, dtype=torch.float64))
        self.first = nn.Linear(16, 32, dtype=torch.float64)
        self.second = nn.Linear(32, 4, dtype=torch.float64)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, identity: int) -> torch.Tensor:
        error = self.second(self.dropout(torch.tanh(self.first(x)))) - y
        return error.square().mean() + self.canary[identity]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=3)
    parser.add_argument("--each", action="store_true", help="reduce after each microbatch")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    replicas = world // args.shards
    slot = rank // args.shards
    mesh = init_device_mesh("cpu", (replicas, args.shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(1)
    model = Model(replicas * args.accumulation)
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = DistributedSampler(Points(), shuffle=True, seed=3, drop_last=True)
    loader = DataLoader(Points(), batch_size=4, sampler=sampler, drop_last=True)
    torch.manual_seed(100 + rank)

    seen: list[list[float]] = []
    micro = 0
    step = 0
    epoch = 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for x, y in loader:
            model.set_requires_all_reduce(args.each or micro == args.accumulation - 1)
            loss = model(x, y, slot * args.accumulation + micro) / args.accumulation
            loss.backward()
            micro += 1
            if micro < args.accumulation:
                continue
            micro = 0
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            seen.append(model.canary.grad.full_tensor().tolist())
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            step += 1
            if step == args.steps:
                break
    dist.barrier()
    weights = {name: p.to_local().detach().clone() for name, p in model.named_parameters()}
    torch.save(weights, args.out / f"weights{rank}.pt")
    (args.out / f"canary{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
