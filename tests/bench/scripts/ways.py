"""More ways to train the network of `network.py`: what `steady.py` measures beside DDP and HSDP."""

from contextlib import AbstractContextManager, nullcontext

import network
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WAYS = (
    *network.STRATEGIES, "by-hand", "replicate", "ddp-unused", "ddp-static", "ddp-tp", "fsdp1"
)  # fmt: skip


class Unused(nn.Module):
    """A network with a parameter that no forward uses."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.idle = inner, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def shared(way: str) -> int:
    """The number of neighbouring ranks that read the same data."""
    return network.SHARDS if way == "ddp-tp" else 1


def build(way: str, width: int, layers: int) -> nn.Module:
    if way in network.STRATEGIES:
        return network.network(way, width, layers, bucket_mb=25)
    model = network.plain(width, layers)
    match way:
        case "by-hand":
            return model
        case "replicate":
            return replicate(model)
        case "ddp-unused":
            return DistributedDataParallel(Unused(model), find_unused_parameters=True)
        case "ddp-static":
            return DistributedDataParallel(model, static_graph=True)
        case "ddp-tp":
            mesh = _mesh("dp", "tp")
            for number, block in enumerate(model):
                part = RowwiseParallel() if number % 2 else ColwiseParallel()
                parallelize_module(block, mesh["tp"], {"0": part})
            return DistributedDataParallel(model, device_mesh=mesh["dp"])
        case "fsdp1":
            return FullyShardedDataParallel(
                model,
                device_mesh=_mesh("replicate", "shard"),
                sharding_strategy=ShardingStrategy.HYBRID_SHARD,
                auto_wrap_policy=ModuleWrapPolicy({type(model[0])}),
                device_id=torch.device("cpu"),
            )
    raise ValueError(f"no way of training: {way}")


def microbatch(way: str, model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Around forward and backward: only the last microbatch of a step is reduced."""
    if way == "replicate":
        model.set_requires_gradient_sync(last)
    elif way == "fsdp1":
        return nullcontext() if last else model.no_sync()
    elif way != "by-hand":
        network.reduce_in_backward(model, last)
    return nullcontext()


def reduce(way: str, model: nn.Module) -> None:
    """The reduction that a script does itself between backward and step."""
    if way == "by-hand":
        for param in model.parameters():
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()


def clip(way: str, model: nn.Module) -> None:
    if way == "fsdp1":
        model.clip_grad_norm_(1.0)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def _mesh(*names: str) -> DeviceMesh:
    shape = (dist.get_world_size() // network.SHARDS, network.SHARDS)
    return init_device_mesh("cpu", shape, mesh_dim_names=names)
