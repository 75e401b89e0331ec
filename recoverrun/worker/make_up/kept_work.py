"""The ends of microbatches that stay in a step though the rank that computed them was lost.

A rank may die after its gradients have reached all others, and before it has left where its last
microbatch ended. The step keeps its work, so nobody makes that up; but where it ended is where the
slot's next step begins. So before the step is applied, each survivor executes it once more, for its
end alone. Parameters still are those that the lost rank had: what it noted of inputs and loss has
to come out bit for bit, else its place stays unknown.
"""

from recoverrun.worker.context.slot_context import AFTER
from recoverrun.worker.errors import NotReplayable
from recoverrun.worker.make_up.deadly_microbatches import microbatch_id_of
from recoverrun.worker.make_up.left_contexts import LeftContexts
from recoverrun.worker.make_up.made_microbatch import Apart
from recoverrun.worker.make_up.microbatch_maker import MicrobatchMaker
from recoverrun.worker.replay.containment import GivenUp
from recoverrun.worker.replay.executed import Executed
from recoverrun.worker.replay.executor import Executor
from recoverrun.worker.replay.known_state import KnownState, lacking
from recoverrun.worker.step.worker_state import WorkerState
from recoverrun.worker.tracking.microbatches import Microbatch
from rendezvous.protocol.views import Identity


class KeptWork:
    """The work of lost ranks in a step that is committed, and not applied yet."""

    def __init__(
        self,
        worker: WorkerState,
        executor: Executor,
        left: LeftContexts,
        maker: MicrobatchMaker,
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._left = left
        self._maker = maker

    def find_ends(self, step: int) -> None:
        """Learn where the lost ranks' microbatches of `step` ended, as far as that can be told.

        In replicas of several ranks it is not tried: some of its ranks may have left their ends,
        and their mates would not take part.
        """
        worker, layout = self._worker, self._worker.protection.layout
        if not worker.lost or not self._left.exact or layout.shards > 1 or not self._maker.own_all:
            return
        last = (step, self._maker.own_all[-1].index, AFTER, 0)
        for slot, (rank,) in enumerate(layout.replicas):
            if slot in worker.protection.machine.view.live:
                continue
            self._left.absorb_of(rank)
            lost = self._executor.lost.get(rank)
            if lost is None or last in lost.states:
                continue
            for microbatch in self._maker.own_all:
                if not self._finds_end((slot, microbatch.index), rank, step, microbatch):
                    break

    def _finds_end(self, identity: Identity, rank: int, step: int, microbatch: Microbatch) -> bool:
        """True if the end of this microbatch is known."""
        noted = self._left.marks.get(rank, {}).get((step, microbatch.index), (0, 0))
        which = microbatch_id_of(step, identity)
        if not all(noted) or self._left.deaths.objection(which):
            return False
        buffer = self._worker.context_buffer
        buffer.enters(which)
        try:
            start, executed = self._execute(rank, step, microbatch)
        except NotReplayable as reason:
            if isinstance(reason, GivenUp):
                self._left.deaths.give_up(which, str(reason))
                buffer.gives_up()
            return False
        finally:
            buffer.rests()
        led = any(one is not None for one in executed.buffers)  # only whoever makes up has them
        if executed.after is None or executed.mark != noted or self._executor.answered or led:
            return False
        self._maker.learn(rank, executed.after, lacking(start, executed.after), assumed=False)
        return True

    def _execute(self, rank: int, step: int, microbatch: Microbatch) -> tuple[KnownState, Executed]:
        """The start of the microbatch, and what came of it. Raises NotReplayable."""
        with self._worker.timing.measure("redo"), Apart(self._worker):
            start = self._left.state_of(rank, microbatch)
            return start, self._executor.execute(rank, start, step, microbatch)
