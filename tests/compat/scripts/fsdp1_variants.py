"""FSDP1 with hybrid sharding, two ranks a replica, in the ways in which people use it."""

import argparse
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "zero2": {"sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2},
    "orig-params": {"use_orig_params": True},
    "bf16": {"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16)},
    "groups": {"device_mesh": None},  # groups by the script, no mesh
    "no-sync": {},
    "full-shard": {"sharding_strategy": ShardingStrategy.FULL_SHARD, "device_mesh": None},
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(x))))


def wrapped(feature: str) -> FSDP:
    world = dist.get_world_size()
    arguments: dict[str, Any] = {
        "sharding_strategy": ShardingStrategy.HYBRID_SHARD,
        "device_mesh": init_device_mesh(
            "cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard")
        ),
        "auto_wrap_policy": ModuleWrapPolicy({Block}),
        "device_id": torch.device("cpu"),
    } | FEATURES[feature]
    if feature == "groups":
        inside = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
        across = [dist.new_group(list(range(shard, world, 2))) for shard in range(2)]
        rank = dist.get_rank()
        arguments["process_group"] = (inside[rank // 2], across[rank % 2])
    net = nn.Sequential(nn.Linear(16, 24), Block(24), Block(24), nn.Linear(24, 16))
    return FSDP(net, **arguments)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("feature", choices=sorted(FEATURES))
    feature = parser.parse_args().feature
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = wrapped(feature)
    torch.manual_seed(100 + dist.get_rank())
    x = torch.randn(240, 16, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            last = number % 2 == 1
            with model.no_sync() if feature == "no-sync" and not last else nullcontext():
                (F.mse_loss(model(x).float(), y) / 2).backward()
            if last:
                model.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
