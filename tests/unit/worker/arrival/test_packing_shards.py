"""Sharded tensors of which both sides have some, as they are packed."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from recoverrun.worker.arrival.packing import Packing, unpack


def packed_and_unpacked() -> tuple[DTensor, DTensor]:
    """An average of sharded parameters, and what has arrived of it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        here = [torch.zeros(1), distribute_tensor(torch.zeros(2, 2), mesh, [Shard(0)])]
        tensors: list[torch.Tensor] = []
        average = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        packed = Packing(tensors, here).pack({"average": [average]})
        (arrived,) = unpack(packed, tensors, here=here)["average"]
        assert arrived.to_local() is not here[1]
    finally:
        dist.destroy_process_group()
    return average, arrived


def test_a_sharded_tensor_is_one_again_if_both_sides_have_one_laid_out_alike() -> None:
    # In a thread of its own: torch keeps a cache for each that has used such tensors, and a process
    # that another thread forks dies of it.
    with ThreadPoolExecutor(1) as pool:
        average, arrived = pool.submit(packed_and_unpacked).result()

    assert type(arrived) is type(average) and arrived.shape == average.shape
    assert arrived.placements == average.placements
    assert torch.equal(arrived.to_local(), torch.arange(4.0))
