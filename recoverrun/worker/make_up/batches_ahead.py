"""Batches of a lost rank that a step has drawn before its loop over them begins."""

from typing import Any

from recoverrun.worker.data.batch_substitution import pairs_for_rank, substituted
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.rng.streams import read_streams, restore_streams
from recoverrun.worker.step.worker_state import WorkerState

PLACE = "the batches of a step"


def batches_of(
    worker: WorkerState, left: LeftContexts, executor: Executor, rank: int, own: list[Any]
) -> list[Any] | None:
    """The items that lost `rank` would have drawn where we drew `own`; None if that cannot be told.

    Then what is made of it is not exact, and the run says so.
    """
    left.await_contexts(rank)
    left.absorb()
    if not left.exact:
        return None
    before = read_streams()

    def theirs() -> list[list[tuple[Any, Any]]]:
        return [pairs_for_rank(batch, executor.runtime.draws.before_now, rank) for batch in own]

    try:
        if rank not in executor.lost:
            raise NotReplayable(f"rank {rank} left nothing by which its batches could be told")
        executor.items.looking_back = True
        pairs = executor.containment.serve(PLACE, rank, executor.longest_s, theirs)
        if not all(pairs) or read_streams() != before:
            raise NotReplayable("the batches of a step are not just what a loader gave")
    except NotReplayable as reason:
        worker.guarantee.weaken(str(reason))
        return None
    finally:
        executor.items.looking_back = False
        restore_streams(before)
    return [substituted(batch, pair) for batch, pair in zip(own, pairs, strict=True)]
