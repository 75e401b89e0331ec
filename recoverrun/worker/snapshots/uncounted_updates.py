"""Updates that belong to no step, and end snapshots if there are many."""

from recoverrun.worker.groups import process_groups
from recoverrun.worker.step.first_updates import FirstUpdates
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.step.worker_state import WorkerState

APART = "the script's processes do not train together"

WITHIN = 10
"""Updates: a script may warm something up before its processes meet, or its loop begins."""


class UncountedUpdates:
    """Those of a process that has met no other one, and those around which no loop was seen."""

    def __init__(self, worker: WorkerState, steps: UnvotedSteps) -> None:
        self._worker = worker
        self._steps = steps
        self._first_updates = FirstUpdates()
        self._apart = 0
        self._loopless = 0

    def backward_begins(self) -> None:
        self._first_updates.backward_begins()

    def updated(self) -> None:
        """An optimizer has made an update."""
        self._steps.updated = True
        runtime = self._worker.runtime
        if not self._first_updates.is_first() or runtime.training_loops:
            return
        self._loopless += 1
        if self._loopless == WITHIN:
            self._worker.take_no_snapshots(runtime.why_no_loop())

    def iteration_begins(self) -> bool:
        """An iteration of a loop begins. True if steps are this rank's to count: nothing else is
        made of its gradients.
        """
        worker = self._worker
        if worker.guarantee.promise == "rollback" or worker.env.world_size == 1:
            return True
        if worker.strategy is not None:  # there are replicas: a vote joins their ranks
            return True
        if self._steps.updated and not process_groups.several():
            self._steps.updated = False
            self._apart += 1
            if self._apart == WITHIN:
                worker.take_no_snapshots(APART)
        return False
