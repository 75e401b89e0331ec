"""The ranks that execute for each other in a proof, and those that fail alone."""

from collections.abc import Mapping

from rendezvous.protocol.layout import Layout


def partner_of(layout: Layout, rank: int) -> int:
    """The rank whose microbatch `rank` executes: of the next slot, where it holds the same part."""
    slot, shard = layout.place(rank)
    return layout.replicas[(slot + 1) % len(layout.replicas)][shard]


def blamed(layout: Layout, tried: Mapping[int, tuple[bool, bool]]) -> list[int]:
    """Ranks that came back and alone are why a proof fails; [] if another one has a part in that.

    `tried`: of each rank, whether it has executed its partner's microbatch rightly, and whether it
    has come back. What such a rank computes itself must be right, as the one that executes it has
    found: others follow it from there.
    """
    failed = [rank for rank, (right, _) in tried.items() if not right]
    confirmed = {partner_of(layout, rank) for rank, (right, _) in tried.items() if right}
    alone = all(tried[rank][1] and rank in confirmed for rank in failed)
    return sorted(failed) if alone else []
