"""Updates that belong to no step, and end snapshots if there are many."""

from collections.abc import Callable, Sequence

from recoverrun.worker.groups import process_groups
from recoverrun.worker.step.first_updates import FirstUpdates
from recoverrun.worker.step.unvoted_steps import UnvotedSteps
from recoverrun.worker.step.worker_state import WorkerState

APART = "the script's processes do not train together"

WITHIN = 10
"""Updates: a script may warm something up before its processes meet, or its loop begins."""

BY_HAND = (
    "the script has computed gradients {} times and made no torch optimizer: where its steps end is"
    " not known"
)

BACKWARDS = 16
"""A script may look at gradients before it makes its optimizer."""


class UncountedUpdates:
    """Those of a process that has met no other one, and those around which no loop was seen."""

    def __init__(
        self, worker: WorkerState, steps: UnvotedSteps, optimizers: Callable[[], Sequence[object]]
    ) -> None:
        """`optimizers` are those that the script has made so far."""
        self._worker = worker
        self._steps = steps
        self._optimizers = optimizers
        self._first_updates = FirstUpdates()
        self._apart = 0
        self._loopless = 0
        self._backwards = 0  # since the last update

    def backward_begins(self) -> None:
        self._first_updates.backward_begins()
        self._backwards += 1
        if self._backwards == BACKWARDS and not self._optimizers():
            self._worker.take_no_snapshots(BY_HAND.format(BACKWARDS))

    def updated(self) -> None:
        """An optimizer has made an update."""
        self._steps.updated, self._backwards = True, 0
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
