"""Batches of a lost rank that a step has drawn before its loop over them begins."""

from typing import Any

from recoverrun.worker.data.batch_substitution import served, substituted
from recoverrun.worker.data.loader_iterator import NotReplayable
from recoverrun.worker.make_up.make_up import MakeUp
from recoverrun.worker.replay.executor import Impersonator
from recoverrun.worker.rng import rng

PLACE = "the batches of a step"


def batches_of(make_up: MakeUp, actor: Impersonator, rank: int, own: list[Any]) -> list[Any] | None:
    """What lost `rank` would have drawn where we drew `own`; None if that cannot be told.

    Then what is made of it is not exact, and the run says so.
    """
    make_up.await_legacy(rank)
    make_up.absorb()
    if not make_up.exact:
        return None
    before = rng.read()

    def theirs() -> list[list[tuple[Any, Any]]]:
        return [served(batch, actor.runtime.draws.before_now, rank) for batch in own]

    try:
        if rank not in actor.lost:
            raise NotReplayable(f"rank {rank} left nothing by which its batches could be told")
        actor.looking_back = True
        pairs = actor.custody.serve(PLACE, rank, actor.longest_s, theirs)
        if not all(pairs) or rng.read() != before:
            raise NotReplayable("the batches of a step are not just what a loader gave")
    except NotReplayable as reason:
        make_up.downgrade(str(reason))
        return None
    finally:
        actor.looking_back = False
        rng.restore(before)
    return [substituted(batch, pair) for batch, pair in zip(own, pairs, strict=True)]
