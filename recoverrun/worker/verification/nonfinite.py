"""The check of gradients that are not finite on some replicas only: the script's doing, or a
machine's.

With `--check-finite` ranks compare at each commit point whether what they have accumulated is
finite. If all are, or none is, nothing happens. Otherwise the next replica with finite gradients
computes the microbatches of the odd one again, as that slot. What is not finite again is the
script's own (a loss that overflowed, say), and the step goes on as it would have. What is finite
there was spoilt by the machine: the odd replica leaves with an error, and its microbatches are made
up for as after any loss. So a fault that gives NaN on one machine costs a replica, not the run.
What that replica had noted of them (`evidence`) is spoilt as well: nobody is to be held to it.

All ranks take part in the same collectives in the same order: those that the plan of the step does
not surprise. A loss in between ends it; then this step is not looked at.
"""

import math
from collections.abc import Iterator

import torch

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.gather_objects import gather
from ft_collectives.step.vote import VoteGroup
from recoverrun.worker.context.slot_context import Context
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.lost_rank import LostRank
from recoverrun.worker.step.strategy import Strategy
from recoverrun.worker.step.worker_state import WorkerState
from rendezvous.protocol.messages import Notice
from rendezvous.protocol.views import View

SAME, UNTOLD, SPOILT = 0, 1, 2
"""What re-execution shows. The least that any rank finds holds for all: not finite in one shard is
not finite, and who does not examine says SPOILT, which stands if nobody objects.
"""


class FaultyRank(RuntimeError):
    """This replica's gradients are not finite, and another one computed the same ones finite."""


def finite(tensors: list[torch.Tensor]) -> bool:
    """True if every element of `tensors` is a number."""
    for tensor in tensors:
        # A sum is some twenty times as fast, and may overflow.
        if not math.isfinite(float(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
            return False
    return True


def examiners(odd: list[int], live: tuple[int, ...]) -> dict[int, int]:
    """The slot that computes each odd slot's microbatches again: the next one that is not odd."""
    sound = [slot for slot in live if slot not in odd]
    after = {slot: [other for other in sound if other > slot] for slot in odd}
    return {slot: (after[slot] or sound)[0] for slot in odd}


class NonfiniteCheck:
    """Looks at each step of `driver` before its gradients are reduced for good."""

    def __init__(self, worker: WorkerState, executor: Executor) -> None:
        self._worker = worker
        self._executor = executor
        self._vote_group: VoteGroup | None = None

    def learn(self) -> None:
        """The others have compared before this process began: it has the channel that they have."""
        if self._worker.env.check_finite:
            self._opened()

    def _opened(self) -> VoteGroup:
        if self._vote_group is None:
            protection = self._worker.protection
            ranks = range(protection.layout.world_size)
            self._vote_group = VoteGroup(protection.fabric, ranks, "guard")
        return self._vote_group

    def check(self) -> None:
        """Raises FaultyRank if this replica's machine spoilt its gradients."""
        worker = self._worker
        if not worker.env.check_finite or worker.refusal or not worker.protected:
            return
        protection = worker.protection
        machine, layout = protection.machine, protection.layout
        vote_group = self._opened()  # all ranks come here first at the same commit point
        with worker.changed:
            stale, view = machine.plan_is_stale, machine.view
        if stale:
            return
        try:
            own = [0] * len(layout.slots)
            own[machine.slot] = int(not finite(protection.strategy.accumulators()))
            counts = vote_group.count(view.generation, own, lambda: None)
            odd = [slot for slot in view.live if counts[slot]]
            if odd and len(odd) < len(view.live):
                self._examine(odd, view, vote_group)
        except Superseded:
            return  # a loss: its recovery comes first

    def _examine(self, odd: list[int], view: View, vote_group: VoteGroup) -> None:
        worker, generation = self._worker, view.generation
        machine, layout = worker.protection.machine, worker.protection.layout
        contexts = self._contexts(generation, vote_group)
        if machine.slot in odd:  # before a verdict, behind which a rank may be ended at any moment
            worker.context_buffer.unmark(worker.step)
        for slot, examiner in examiners(odd, view.live).items():
            found = SPOILT
            if examiner == machine.slot:
                found = self._again(slot, contexts)
            verdict = vote_group.least(generation, found)
            first = layout.replicas[slot][0]
            told = f"step {worker.step}: the gradients of replica {slot} are not finite"
            if verdict == SPOILT and slot == machine.slot:
                raise FaultyRank(f"{told}; replica {examiner} computed the same ones, and they are")
            if slot == machine.slot:
                for one in worker.runtime.microbatches:
                    worker.context_buffer.mark(worker.step, one.index, one.mark)
            if verdict != SPOILT and worker.env.rank == first:
                why = (
                    "nor when replica {} computes them" if verdict == SAME else "{} cannot tell why"
                )
                worker.link.send(Notice(
                    rank=first, generation=generation, event="notice.give",
                    reason=f"{told}, {why.format(examiner)}",
                ))  # fmt: skip

    def _contexts(self, generation: int, vote_group: VoteGroup) -> dict[int, bytes]:
        """The context of each rank of our shard position as the step began."""
        microbatches = self._worker.runtime.microbatches
        top = microbatches[0].top.context if microbatches else None
        mine = {"context": top.pack() if top is not None else b""}
        fabric = self._worker.protection.fabric
        said = gather(fabric, vote_group.channel, generation, mine)
        return {rank: one["context"] for rank, one in said.items()}

    def _again(self, slot: int, contexts: dict[int, bytes]) -> int:
        """Compute all microbatches of `slot` once more; what that shows."""
        worker, executor = self._worker, self._executor
        layout, strategy = worker.protection.layout, worker.protection.strategy
        rank = layout.replicas[slot][layout.place(worker.env.rank)[1]]
        context, mine = contexts.get(rank), worker.runtime.microbatches[0].top.context
        if not context or mine is None or not worker.guarantee.exact:
            return UNTOLD
        odd = LostRank(rank, apart=worker.runtime.gate.apart_from(rank))
        odd.learn(Context.unpack(context), mine)
        kept, executor.lost[rank] = strategy.set_aside(), odd
        try:
            return SPOILT if all(self._each_finite(odd, strategy)) else SAME
        except NotReplayable:
            return UNTOLD
        finally:
            strategy.put_back(kept)
            del executor.lost[rank]

    def _each_finite(self, odd: LostRank, strategy: Strategy) -> Iterator[bool]:
        """For each microbatch of `odd`: True if its gradients are finite. Raises NotReplayable."""
        worker, executor = self._worker, self._executor
        for microbatch in worker.runtime.microbatches:
            top, points = microbatch.top.context, executor.captures.points
            assert top is not None, "captured"
            done = executor.execute(odd.rank, odd.at(top.point, points), worker.step, microbatch)
            yield finite(strategy.accumulators())
            after = None if done.after is None else executor.captures.at(done.after.point)
            if done.after is not None and after is not None:
                odd.learn(done.after, after)
