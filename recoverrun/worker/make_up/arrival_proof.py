"""A rank that takes part again is proved before its first transaction counts.

Survivors have followed it for as long as it was lost. So one of them executes its first microbatch
as it would have done, and what comes of that is compared with what the newcomer has: what entered
the model, its random numbers, the loss, and the gradient where bits can be compared. If it differs,
the newcomer leaves, and its microbatches are made up in this transaction as in those before.
"""

import torch

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.gather_objects import gather
from recoverrun.worker.context.evidence import crc_of_streams
from recoverrun.worker.context.slot_context import AFTER
from recoverrun.worker.make_up.audits import Report, Witness, difference, gradient_of, report_of
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.step.leaving import leave
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.rank_differences import diverged, uneven_newcomers

UNLIKE = "its microbatch of step {step} {what}, compared with what rank {by} found for it"


def compare_counts(worker: WorkerState, generation: int) -> None:
    """All ranks enter, before anything else of a transaction in which some take part again.

    Those of them that take another number of microbatches than the others leave, before any sum
    has a part of theirs (Superseded on the others). Where others differ, the vote says so.
    """
    protection = worker.protection
    many = len(worker.runtime.microbatches)
    taken, _ = protection.vote_group.taken(generation, many)
    odd = diverged(taken, dict.fromkeys(worker.joined, generation))
    if worker.env.rank in odd:
        leave(worker, uneven_newcomers(worker.step, taken, odd))
    if odd:
        raise Superseded


def auditor_of(layout: Layout, live: tuple[int, ...], joined: tuple[int, ...], rank: int) -> int:
    """The slot of the survivor that executes for newcomer `rank`; -1 if there is none."""
    back = {layout.slot(one) for one in joined}
    survivors = [slot for slot in live if slot not in back]
    return survivors[layout.slot(rank) % len(survivors)] if survivors else -1


def prove(worker: WorkerState, executor: Executor, generation: int, execute: Witness) -> list[int]:
    """All ranks enter, in the transaction in which some take part again. This process ends if it is
    one of these, and not what it should be. Superseded if `generation` ends first.

    Returns those that were compared, and are what they should be: of all shards, if that holds for
    all of them; else of this one.
    """
    protection = worker.protection
    layout, view = protection.layout, protection.machine.view
    _, shard = layout.place(worker.env.rank)
    here = [one for one in worker.joined if one in view.live_ranks]
    reports = {}
    for rank in here:
        auditor = auditor_of(layout, view.live, worker.joined, rank)
        slot, place = layout.place(rank)
        if auditor == protection.machine.slot and place == shard:
            reports[rank] = report_of(worker, execute((slot, 0), rank))
    own_report = _own(worker, executor) if worker.env.rank in here else []
    words = {"own": own_report, "found": [[rank, one] for rank, one in reports.items()]}
    heard = gather(protection.fabric, protection.peers, generation, words)
    proved = []
    for by, said in sorted(heard.items()):
        for rank, theirs in said["found"]:
            its = heard[rank]["own"] if rank in heard else []
            if not (its and theirs):
                continue
            what = difference([its, theirs])
            if not what:
                proved.append(rank)
            elif rank == worker.env.rank:
                leave(worker, UNLIKE.format(step=worker.step, what=what, by=by))
    mine = {rank for rank in here if layout.place(rank)[1] == shard}
    if protection.vote_group.least(generation, int(mine <= set(proved))):
        return here
    return proved


def _own(worker: WorkerState, executor: Executor) -> Report:
    """The report on this rank's own first microbatch."""
    microbatches, strategy = worker.runtime.microbatches, worker.protection.strategy
    after = executor.captures.at((worker.step, 0, AFTER, 0))
    if not microbatches or after is None:
        return []
    inputs, loss = microbatches[0].mark
    bitwise = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    alone = strategy.alone and worker.protection.layout.shards == 1 and len(microbatches) == 1
    # Own gradients are summed up with those of before, and another's are added to them later.
    fresh = not any(one.carries() for one in strategy.reducers())
    pieces = [(one, one.piece(carried=True)) for one in strategy.reducers()]
    gradient = gradient_of(pieces) if bitwise and alone and fresh else 0
    return [inputs, crc_of_streams(after.streams), loss if bitwise else 0, gradient]
