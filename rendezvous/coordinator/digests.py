"""The comparison of parameters between replicas, by their checksums in one step (INV-3).

Ranks of one shard position must agree; those of different positions hold different shards. Where
more than half agree, the others are named: their memory, their kernels or their script went astray.
They are *outvoted*, and leave like any loss. Where no more than half agree, nobody can say who
holds what all should hold.
"""

from collections.abc import Iterable, Mapping

from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.members import Membership
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.records import Json, Record

DIFFER = "digest.differ"


def compared(step: int, digests: Mapping[int, str], layout: Layout) -> list[Record]:
    """Records of the comparison of `digests` that ranks (global) said at `step`: one record if all
    agree, one for each shard position where they do not; none if nobody looked.
    """
    looked = {rank: digest for rank, digest in sorted(digests.items()) if digest}
    if not looked:
        return []
    by_shard: dict[int, dict[str, list[int]]] = {}
    for rank, digest in looked.items():
        by_shard.setdefault(layout.place(rank)[1], {}).setdefault(digest, []).append(rank)
    apart = [sorted(by_shard[shard].values()) for shard in sorted(by_shard)]
    differ = [_differ(step, groups) for groups in apart if len(groups) > 1]
    reason = f"at step {step} {len(looked)} ranks held the parameters of their shard"
    return differ or [Record("digest.agree", reason, {"step": step})]


def outvoted(
    records: Iterable[Record], members: Membership, now: float, *, protected: bool
) -> list[Loss] | str:
    """The members that are outvoted by `records`, as losses; why nobody can go on if so, in words.

    Without protection none of them can leave.
    """
    losses = []
    for record in records:
        if record.event != DIFFER:
            continue
        if members.layout is None or not protected or not record.fields["outvoted"]:
            return record.reason
        step, generation = record.fields["step"], members.generation + 1
        for rank in members.live_ranks.intersection(_ranks(record)):
            reason = f"rank {rank}: its parameters differ from the others' (step {step})"
            loss = Loss.of_parameters(
                rank, reason, layout=members.layout, generation=generation, now=now
            )
            losses.append(loss)
    return sorted(losses, key=lambda loss: loss.root_rank)


def _ranks(record: Record) -> list[int]:
    ranks = record.fields["ranks"]
    return [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else []


def _differ(step: int, groups: list[list[int]]) -> Record:
    everybody = sum(len(group) for group in groups)
    reason = f"at step {step} the parameters of ranks {groups} differed"
    odd = [group for group in groups if 2 * len(group) <= everybody]
    astray = sorted(rank for group in odd for rank in group)
    majority = len(odd) < len(groups)
    if majority:
        many = "rank" if len(astray) == 1 else "ranks"
        reason += f": {many} {', '.join(map(str, astray))} against all others"
    ranks: list[Json] = list(astray)
    return Record(DIFFER, reason, {"step": step, "ranks": ranks, "outvoted": majority})
