"""Sharded tensors of which both sides have some, as they are packed."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from recoverrun.worker.arrival.packing import Packing, unpack


def test_a_sharded_tensor_is_one_again_if_both_sides_have_one_laid_out_alike() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        here = [torch.zeros(1), distribute_tensor(torch.zeros(2, 2), mesh, [Shard(0)])]
        tensors: list[torch.Tensor] = []
        average = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        packed = Packing(tensors, here).pack({"average": [average]})
        (arrived,) = unpack(packed, tensors, here=here)["average"]
    finally:
        dist.destroy_process_group()

    assert type(arrived) is type(average) and arrived.shape == average.shape
    assert arrived.placements == average.placements and arrived.to_local() is not here[1]
    assert torch.equal(arrived.to_local(), torch.arange(4.0))
