"""Replicas that are meshes themselves: sharding beside tensor, context and pipeline parallelism.

The order of dimensions is torchtitan's: pipeline, replicas, shards, context, tensor.
"""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, LENGTH, PARTS = 16, 8, 4

Microbatch = Callable[[torch.Tensor, torch.Tensor], None]

SIZES = {
    "tp": {"pp": 1, "shard": 1, "cp": 1, "tp": 2},
    "shard-tp": {"pp": 1, "shard": 2, "cp": 1, "tp": 2},
    "cp": {"pp": 1, "shard": 1, "cp": 2, "tp": 1},
    "pp": {"pp": 2, "shard": 1, "cp": 1, "tp": 1},
    "pp-sums": {"pp": 2, "shard": 1, "cp": 1, "tp": 1},
    "pp-twice": {"pp": 2, "shard": 1, "cp": 1, "tp": 1},
    "pp-interleaved": {"pp": 2, "shard": 1, "cp": 1, "tp": 1},
    "pp-zero-bubble": {"pp": 2, "shard": 1, "cp": 1, "tp": 1},
    "pp-tp": {"pp": 2, "shard": 1, "cp": 1, "tp": 2},
}


class Block(nn.Module):
    """Attention over the whole sequence, of which `group` holds a piece each; and a layer."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.group is not None:
            k, v = (all_gather_single_autograd(one, 1, self.group) for one in (k, v))
        x = x + (q @ k.transpose(1, 2) / WIDTH**0.5).softmax(-1) @ v
        return x + self.drop(self.down(torch.tanh(self.up(x))))


def prepared(block: nn.Module, mesh: DeviceMesh, replicas: DeviceMesh) -> nn.Module:
    """The block of this rank: split by tensors, then sharded."""
    if isinstance(block, Block) and mesh["tp"].size() > 1:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=replicas)
    return block


def stages(way: str, blocks: list[nn.Module], mesh: DeviceMesh, replicas: DeviceMesh) -> Microbatch:
    """This rank's stages of a pipeline."""
    pp, device, group = mesh["pp"].get_local_rank(), torch.device("cpu"), mesh["pp"].get_group()
    loss = F.mse_loss
    single = way in ("pp", "pp-sums", "pp-twice", "pp-tp")
    places = {"pp-interleaved": [pp, pp + 2], "pp-zero-bubble": [pp, 3 - pp]}.get(way, [pp])
    if single:
        blocks[:] = [nn.Sequential(*blocks[:2]), nn.Sequential(*blocks[2:])]
    mine = [nn.Sequential(prepared(blocks[place], mesh, replicas)) for place in places]
    for model in mine:
        fully_shard(model, mesh=replicas)
    made = [
        PipelineStage(model, place, len(blocks), device, group=group)
        for model, place in zip(mine, places, strict=True)
    ]
    kind = ScheduleZBVZeroBubble if way == "pp-zero-bubble" else ScheduleInterleaved1F1B
    if single:
        schedule = Schedule1F1B(made[0], PARTS, loss_fn=loss, scale_grads=way != "pp-sums")
    else:
        schedule = kind(made, PARTS, loss_fn=loss)
    first, last = 0 in places, len(blocks) - 1 in places
    blocks[:] = mine

    def microbatch(x: torch.Tensor, y: torch.Tensor) -> None:
        schedule.step(*((x,) if first else ()), **({"target": y, "losses": []} if last else {}))

    return microbatch


def whole(blocks: list[nn.Module], mesh: DeviceMesh, replicas: DeviceMesh) -> Microbatch:
    """One model, of a piece of the sequence where others have the rest."""
    model = nn.Sequential(*(prepared(block, mesh, replicas) for block in blocks))
    fully_shard(model, mesh=replicas)
    blocks[:] = [model]
    pieces, place = mesh["cp"].size(), mesh["cp"].get_local_rank()

    def microbatch(x: torch.Tensor, y: torch.Tensor) -> None:
        x, y = x.chunk(pieces, dim=1)[place], y.chunk(pieces, dim=1)[place]
        F.mse_loss(model(x), y).backward()

    return microbatch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=sorted(SIZES))
    way = parser.parse_args().way
    dist.init_process_group("gloo")
    sizes = SIZES[way]
    inner = sizes["shard"] * sizes["cp"] * sizes["tp"]
    count = dist.get_world_size() // inner // sizes["pp"]
    shape = (sizes["pp"], count, sizes["shard"], sizes["cp"], sizes["tp"])
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "replicate", "shard", "cp", "tp"))
    mesh["shard", "cp"]._flatten("shard_cp")
    replicas = mesh["replicate", "shard_cp"]
    torch.manual_seed(1)
    group = mesh["cp"].get_group() if sizes["cp"] > 1 else None
    blocks: list[nn.Module] = [Block(group).double() for _ in range(4)]
    if sizes["pp"] > 1:
        microbatch = stages(way, blocks, mesh, replicas)
    else:
        microbatch = whole(blocks, mesh, replicas)
    x = torch.randn(384, LENGTH, WIDTH, dtype=torch.float64)
    data = TensorDataset(x, x.roll(1, 1) * 0.5)
    # Ranks that hold the same samples: all but those of other replicas and shards.
    place = mesh["replicate"].get_local_rank() * sizes["shard"] + mesh["shard"].get_local_rank()
    sampler = DistributedSampler(data, count * sizes["shard"], place)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    parameters = [param for block in blocks for param in block.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    torch.manual_seed(7 + place)
    a_step = 2 if way == "pp-twice" else 1
    for number, (x, y) in enumerate(loader):
        microbatch(x, y)
        if (number + 1) % a_step == 0:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
