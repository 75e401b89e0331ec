"""The layout that a rank's two groups tell: replicas of neighbouring ranks."""

from collections.abc import Sequence

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
