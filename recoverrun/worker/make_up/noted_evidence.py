"""The comparison of an executed microbatch with what the lost rank had noted of it.

Of a microbatch that it had begun there is a mark. A rank that dies before its data enter the model
has noted nothing of the struck transaction; then its first microbatch of the one before is executed
again, as far as the model's door. If that cannot be told any more, because something began to move
that nobody saw when the proofs were made, then neither can what follows.

A survivor has noted all of its own. Before it executes anything for a lost rank, and with each
audit, it executes its own first microbatch of the transaction once more. What the script moves and
nobody puts back, wherever it is, shows in that one.
"""

import torch

from recoverrun.worker.context.evidence import Mark, crc_of_streams
from recoverrun.worker.context.slot_context import AFTER
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.made_microbatch import MadeMicrobatch
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import KnownState
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch

OTHERWISE = (
    "rank {rank}'s microbatch {index} of step {step}, executed again here, {what}: "
    "it depends on something that is not captured"
)
UNEQUAL = (
    "had other inputs than rank {rank} itself had noted",
    "had the same inputs and another loss",
)
COMMITTED = (
    "rank {rank}'s microbatch {index} of step {step}, which it had committed, had other "
    "inputs than when it is executed again here: it depends on something that is not captured"
)

OWN = (
    "{loop}: rank {rank}'s own microbatch of step {step}, executed once more by itself, "
    "{what}: something that it depends on moves and cannot be put back, so another rank's could "
    "not be told either"
)


def own_mismatch(worker: WorkerState, executor: Executor) -> str:
    """The reason why this rank cannot execute the microbatches of another one, or "": its own of
    the present transaction does not come out as it did.
    """
    strategy, step = worker.protection.strategy, worker.step
    microbatch = worker.runtime.microbatches[0] if worker.runtime.microbatches else None
    top = microbatch.top.context if microbatch is not None else None
    after = (
        executor.captures.at((step, microbatch.index, AFTER, 0)) if microbatch is not None else None
    )
    if microbatch is None or top is None or after is None:
        return ""
    kept = strategy.set_aside()
    try:
        done = executor.execute(worker.env.rank, KnownState(top), step, microbatch)
    except NotReplayable:
        return ""  # nor could a lost rank's: that is judged by itself
    finally:
        strategy.put_back(kept)
    if done.after is None or executor.answered:
        return ""
    bitwise = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    what = ""
    if done.mark[0] != microbatch.mark[0]:
        what = "had other inputs"
    elif crc_of_streams(done.after.streams) != crc_of_streams(after.streams):
        what = "drew other random numbers"
    elif bitwise and done.mark[1] != microbatch.mark[1]:
        what = "had another loss"
    place = microbatch.top.loop.id
    return OWN.format(loop=place, rank=worker.env.rank, step=step, what=what) if what else ""


def committed_one(
    worker: WorkerState, executor: Executor, rank: int, marks: dict[tuple[int, int], Mark]
) -> Microbatch | None:
    """The microbatch of the last transaction that lost `rank` has noted, if it can be executed."""
    microbatch = worker.runtime.previous
    top = microbatch.top.context if microbatch is not None else None
    if microbatch is None or top is None or microbatch.top.evidence is None:
        return None
    theirs, _ = marks.get((top.step, microbatch.index), (0, 0))
    one_forward = microbatch.top.evidence.entered[:1] == [microbatch.mark[0]]
    captured = executor.captures.at((top.step, microbatch.index, AFTER, 0)) is not None
    usable = bool(theirs) and one_forward and captured and rank in executor.lost
    return microbatch if usable else None


def disproved(
    worker: WorkerState, executor: Executor, rank: int, marks: dict[tuple[int, int], Mark]
) -> str:
    """The reason not to believe the context of lost `rank`, or "": by its own `marks`, and what
    this rank still has of its microbatch of the same transaction.
    """
    microbatch = committed_one(worker, executor, rank, marks)
    if microbatch is None or microbatch.top.context is None:
        return ""
    top, strategy = microbatch.top.context, worker.protection.strategy
    step, index = top.step, microbatch.index
    kept, executor.only_inputs = strategy.set_aside(), True
    try:
        state = executor.lost[rank].at(top.point, executor.captures.points)
        (inputs, _) = executor.execute(rank, state, step, microbatch).mark
    except NotReplayable:
        return ""  # what follows may be all the same: it is judged by itself
    finally:
        executor.only_inputs = False
        strategy.put_back(kept)
    theirs, _ = marks[step, index]
    return "" if inputs == theirs else COMMITTED.format(rank=rank, index=index, step=step)


def unlike(made: MadeMicrobatch, known: Mark, step: int) -> str:
    """The difference between this microbatch and the one of which the lost rank has noted `known`,
    or "".
    """
    if made.executed is None:
        return ""
    inputs, loss = made.executed.mark
    through = {inputs} if known[1] else made.executed.entered  # or only to its first forward
    what = ""
    if known[0] and known[0] not in through:
        what = UNEQUAL[0].format(rank=made.rank)
    elif known[1] and known[1] != loss:
        what = UNEQUAL[1]
    index = made.identity[1]
    return OTHERWISE.format(rank=made.rank, index=index, step=step, what=what) if what else ""
