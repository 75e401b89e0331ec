"""FSDP2 with replicas of two ranks or of `--shards`, and tensor parallelism inside of replicas."""

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "keep": {"reshard_after_forward": False},
    "bf16": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)},
    "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "ignored": {},
    "tp-ddp": {},
    "tp-sharded": {},
    "replicate": {},
    "in-backward": {},
    "unlike": {},
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def split(net: nn.Sequential, mesh: DeviceMesh) -> None:
    """Megatron's way: the first layer of a block by columns, the second by rows."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in net:
        if isinstance(block, Block):
            parallelize_module(block, mesh, plan)


def wrapped(net: nn.Sequential, feature: str, shards: int) -> nn.Module:
    names = ("dp", "tp" if feature.startswith("tp-") else "shard")
    shape = (dist.get_world_size() // shards, shards)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if feature == "tp-ddp":
        split(net, mesh["tp"])
        return DistributedDataParallel(net, device_mesh=mesh["dp"])
    if feature == "tp-sharded":
        split(net, mesh["tp"])
        fully_shard(net, mesh=mesh["dp"])
        return net
    if feature == "replicate":
        everybody = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in net:
            replicate(block, mesh=everybody)
        replicate(net, mesh=everybody)
        return net
    for block in net:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, **FEATURES[feature])
    if feature == "unlike":  # a loss takes a part of this layer along
        fully_shard(net[-1], mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    ignored = {net[0].weight, net[0].bias} if feature == "ignored" else set()
    for param in ignored:
        param.requires_grad_(False)
    fully_shard(net, mesh=mesh, ignored_params=ignored, **FEATURES[feature])
    return net


def step_in_backward(model: nn.Module) -> None:
    """Gradients need no memory, as each is used and dropped at once."""
    optimizers = {param: torch.optim.AdamW([param], lr=1e-2) for param in model.parameters()}

    def step(param: torch.Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("feature", choices=sorted(FEATURES))
    parser.add_argument("--shards", type=int, default=2)
    args = parser.parse_args()
    feature = args.feature
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 24), Block(24), Block(24), nn.Linear(24, 16)).double()
    model = wrapped(net, feature, args.shards)
    x = torch.randn(240, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    # Ranks of one tensor-parallel replica read the same data.
    shared = args.shards if feature.startswith("tp-") else 1
    replicas = dist.get_world_size() // shared
    sampler = DistributedSampler(data, replicas, dist.get_rank() // shared)
    loader = DataLoader(data, batch_size=5, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if feature == "in-backward":
        step_in_backward(model)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            (F.mse_loss(model(x), y) / 2).backward()
            if number % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
            if number > 23:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
