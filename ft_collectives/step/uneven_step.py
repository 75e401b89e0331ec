"""The end of a step of which ranks have taken unequally many microbatches."""

from ft_collectives.step.step_events import Compared, Differ, Effect, Uneven, Withdraw
from rendezvous.protocol.rank_differences import diverged, unequal, uneven_newcomers


def effects_of(
    rank: int, step: int, compared: Compared, *, whole: bool, shards: int
) -> list[Effect]:
    """The effects on `rank`. Those that came back leave if they differ from those that have been
    there longest, and these wait for the view without them; else it is the script's.

    `whole`: all replicas, of `shards` ranks, are there, so that what was reduced is what torch
    would have reduced.
    """
    taken = compared.taken
    odd = diverged(taken, compared.since)
    if not odd and whole:
        return [Uneven(reason=unequal(step, taken), total=sum(taken.values()) // shards)]
    if not odd:
        return [Differ(reason=unequal(step, taken))]
    if rank in odd:
        return [Withdraw(reason=uneven_newcomers(step, taken, odd))]
    return []
