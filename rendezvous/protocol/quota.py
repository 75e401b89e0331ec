"""The microbatches of each replica in a step: deterministic, even to one, home slots at home.

A survivor first does its own slot's microbatches; only those of lost slots move (docs/recovery.md,
"What follows from a loss"). They are dealt out in (slot, index) order as contiguous ranges, because
re-executing index i of a slot needs that slot's random state at i, which is cheapest to have right
after i - 1.
"""

import heapq
from collections.abc import Iterable, Mapping
from functools import lru_cache

from rendezvous.protocol.views import Identity


def identities(slots: Iterable[int], microbatches: int) -> tuple[Identity, ...]:
    """All identities of a step, in canonical order."""
    return tuple((slot, index) for slot in sorted(slots) for index in range(microbatches))


def share_out(
    missing: Iterable[Identity], loads: Mapping[int, int]
) -> dict[int, tuple[Identity, ...]]:
    """Deal `missing` out to the replicas of `loads` so that the final loads are as even as can be.

    `loads[replica]` is the number of microbatches of the step that this replica has done or will do
    anyway. No load is taken away. Returns the extra identities of every replica, most often (), and
    the same answer to every caller for the same arguments. The earliest replicas take the rest.
    """
    if not loads:
        raise ValueError("no replica is left to compute for")
    todo = sorted(missing)
    assert len(set(todo)) == len(todo), f"INV-1: dealt out twice: {todo}"
    lightest = [(load, replica) for replica, load in loads.items()]
    heapq.heapify(lightest)
    counts = dict.fromkeys(loads, 0)
    for _ in todo:
        load, replica = lightest[0]
        counts[replica] += 1
        heapq.heapreplace(lightest, (load + 1, replica))
    extra: dict[int, tuple[Identity, ...]] = {}
    start = 0
    for replica in sorted(counts):
        extra[replica] = tuple(todo[start : start + counts[replica]])
        start += counts[replica]
    return extra


def standing_quota(
    live: Iterable[int], slots: Iterable[int], microbatches: int
) -> dict[int, tuple[Identity, ...]]:
    """Extra identities of each live replica in a step that begins and ends with these members."""
    members = sorted(live)
    lost = sorted(set(slots) - set(members))
    return share_out(identities(lost, microbatches), dict.fromkeys(members, microbatches))


@lru_cache(maxsize=16)
def standing_shares(
    live: tuple[int, ...], slots: tuple[int, ...], microbatches: int
) -> Mapping[int, tuple[Identity, ...]]:
    """All identities of each live replica in such a step: those of its own slot, and the extra."""
    extra = standing_quota(live, slots, microbatches)
    return {slot: (*identities((slot,), microbatches), *extra[slot]) for slot in sorted(live)}
