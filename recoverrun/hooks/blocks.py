"""The layout that a rank's groups tell: replicas of neighbouring ranks."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from rendezvous.layout import Layout


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
