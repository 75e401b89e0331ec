"""The network of the measured scripts: layers of one width with dropout, over DDP or HSDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SHARDS = 2  # of an HSDP replica
STRATEGIES = ("ddp", "hsdp")


def width_of(parameters: int, layers: int) -> int:
    return round((parameters / layers) ** 0.5)


def plain(width: int, layers: int) -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers))
    )


def network(strategy: str, width: int, layers: int, bucket_mb: float) -> nn.Module:
    """`bucket_mb` counts for DDP only."""
    model = plain(width, layers)
    if strategy == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard")
    )
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def reduce_in_backward(model: nn.Module, last: bool) -> None:
    """Only the last microbatch of a step is reduced between replicas."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = last
    else:
        model.set_requires_all_reduce(last)


def batches(
    width: int, batch: int, count: int, shared: int = 1
) -> DataLoader[tuple[torch.Tensor, ...]]:
    """A loader with `count` batches for this rank and its neighbours, `shared` ranks in all; the
    samples are random numbers.
    """
    readers = dist.get_world_size() // shared
    data = TensorDataset(torch.randn(min(4096, readers * batch * count), width))
    wanted = torch.utils.data.ConcatDataset([data] * -(-readers * batch * count // len(data)))
    sampler = DistributedSampler(wanted, readers, dist.get_rank() // shared)
    return DataLoader(wanted, batch_size=batch, sampler=sampler)
