"""The layout that a rank's groups or meshes tell."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from rendezvous.protocol.layout import Layout


def layout_of(world: int, shards: Sequence[int], replicas: Sequence[int]) -> Layout | None:
    """Every replica is `len(shards)` neighbouring ranks, if these two groups of ours are of such.

    `shards` are the ranks of our own replica, `replicas` those with our place in the others. None
    if they lie otherwise: what other ranks are to each other is then not known.
    """
    size = len(shards)
    first, place = shards[0], replicas[0]
    if world % size or first % size or place >= size:
        return None
    if list(shards) != list(range(first, first + size)):
        return None
    if list(replicas) != list(range(place, world, size)):
        return None
    return Layout(tuple(tuple(range(at, at + size)) for at in range(0, world, size)))


def layout_over(group: Any) -> Layout | None:
    """One rank a replica; or several, where `group` is of those that hold the same part of it."""
    world, replicas = dist.get_world_size(), dist.get_process_group_ranks(group)
    size = world // len(replicas)
    first = dist.get_rank() // size * size
    return layout_of(world, range(first, first + size), replicas)


def layout_of_mesh(world: int, mesh: Any, sharded: bool) -> Layout | None:
    """Replicas along the first dimension of `mesh`: (replicate, shard), or without the second.

    It may be a part of a larger one. All parts cut from that one in the same way hold the same:
    those that differ in the places of other dimensions (tensor, context or pipeline parallelism)
    lie in the same replicas. None if they do not make up the world.
    """
    if mesh.ndim != (2 if sharded else 1):
        return None
    if mesh.size() == world:
        parts = [mesh.mesh.tolist()]
    elif hasattr(mesh, "_layout") and hasattr(mesh, "_rank_map"):
        # torch 2.13, DeviceMesh.mesh: the parts, of which it picks the one that this rank is in.
        parts = mesh._layout.remap_to_tensor(mesh._rank_map).tolist()
    else:
        return None  # another torch: other parts are not told
    columns = [ranks for part in parts for ranks in zip(*part, strict=True)] if sharded else parts
    return _layout(world, sorted(columns))


def _layout(world: int, held_alike: Sequence[Sequence[int]]) -> Layout | None:
    """The layout by groups of ranks that hold the same part of the model, one in each replica."""
    try:
        layout = Layout(tuple(zip(*held_alike, strict=True)))
    except ValueError:
        return None
    return layout if layout.world_size == world else None
