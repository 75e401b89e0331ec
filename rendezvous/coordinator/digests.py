"""Do all replicas hold the same parameters? What their checksums say of one step (INV-3).

Ranks of one shard position must agree; those of different positions hold different shards. Where
more than half agree, the others are named: their memory, their kernels or their script went astray.
"""

from collections.abc import Mapping

from rendezvous.protocol.effects import Json, Record
from rendezvous.protocol.layout import Layout


def compared(step: int, digests: Mapping[int, str], layout: Layout) -> list[Record]:
    """One record for the `digests` that ranks (global) said at `step`; none if nobody looked."""
    looked = {rank: digest for rank, digest in sorted(digests.items()) if digest}
    if not looked:
        return []
    by_shard: dict[int, dict[str, list[int]]] = {}
    for rank, digest in looked.items():
        by_shard.setdefault(layout.place(rank)[1], {}).setdefault(digest, []).append(rank)
    for shard in sorted(by_shard):
        groups = sorted(by_shard[shard].values())
        if len(groups) > 1:
            return [_differ(step, groups)]
    reason = f"at step {step} {len(looked)} ranks held the parameters of their shard"
    return [Record("digest.agree", reason, {"step": step})]


def _differ(step: int, groups: list[list[int]]) -> Record:
    everybody = sum(len(group) for group in groups)
    reason = f"at step {step} the parameters of ranks {groups} differed"
    odd = [group for group in groups if 2 * len(group) <= everybody]
    astray = sorted(rank for group in odd for rank in group)
    if len(odd) < len(groups):
        many = "rank" if len(astray) == 1 else "ranks"
        reason += f": {many} {', '.join(map(str, astray))} against all others"
    ranks: list[Json] = list(astray)
    return Record("digest.differ", reason, {"step": step, "ranks": ranks})
