"""How a lost rank's random streams lie to ours: who has drawn how often (`heritage`).

With `shared`, what either of us drew in code that the script means for it alone does not count.
"""

from typing import Literal

from recoverrun.hooks import rng

Kin = Literal["alike", "fewer", "other"]
"""How often a lost rank had drawn random numbers, beside us."""


def kin_of(theirs: rng.Streams, mine: rng.Streams, *, shared: bool) -> Kin:
    """How often they had drawn since they were seeded, both at the same point of the script."""
    if rng.phase(theirs, shared=shared) == rng.phase(mine, shared=shared):
        return "alike"
    drawn = [rng.draws_since_seed(one, shared=shared) for one in (theirs, mine)]
    if drawn[0] is None or drawn[1] is None:
        return "other"
    return "fewer" if drawn[0] < drawn[1] else "other"


def draws(before: rng.Streams, after: rng.Streams, *, shared: bool) -> bool:
    """Were torch's numbers drawn in between?"""
    moved = rng.jump(before, before, after, hosts=False, shared=shared)
    here = (before.torch_cpu, before.torch_cuda)
    return moved is None or (moved.torch_cpu, moved.torch_cuda) != here
