"""The end of a step of which ranks have taken unequally many microbatches."""

from ft_collectives.step.step_events import Compared, Differ, Effect, Withdraw
from rendezvous.transport.apart import strays, takes_otherwise, unequal


def parted(rank: int, step: int, compared: Compared) -> list[Effect]:
    """The effects on `rank`. Those that came back leave if they differ from those that have been
    there longest, and these wait for the view without them; else it is the script's.
    """
    odd = strays(compared.taken, compared.since)
    if not odd:
        return [Differ(reason=unequal(step, compared.taken))]
    if rank in odd:
        return [Withdraw(reason=takes_otherwise(step, compared.taken, odd))]
    return []
