"""Updates that belong to no step, and end snapshots if there are many."""

from collections.abc import Callable, Sequence
from typing import Any

from recoverrun.worker.groups import process_groups
from recoverrun.worker.snapshots.watched_elements import WatchedElements
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

ITSELF = (
    "the script has changed its parameters {} times since an optimizer of torch did: where its"
    " steps end is not known"
)

CHANGES, MORE = 256, 4
"""Between two updates: a script may move weights for a look at gradients, as SAM does, take steps
of an inner loop, or normalize weights in each forward of as many microbatches. More than that ends
snapshots if it is MORE times what there was between two updates before.
"""


class UncountedUpdates:
    """Those of a process that has met no other one, and those around which no loop was seen."""

    def __init__(
        self, worker: WorkerState, steps: UnvotedSteps, optimizers: Callable[[], Sequence[Any]]
    ) -> None:
        """`optimizers` are those that the script has made so far."""
        self._worker = worker
        self._steps = steps
        self._optimizers = optimizers
        self._first_updates = FirstUpdates()
        self._apart = 0
        self._loopless = 0
        self._backwards = self._changes = 0  # since the last update
        self._most = 0  # changes between two updates so far
        self._updating = False
        self._elements = WatchedElements()

    def backward_begins(self) -> None:
        """One after which no optimizer makes an update may add up gradients, as many as it likes.
        That of a script which updates parameters itself finds other ones.
        """
        self._first_updates.backward_begins()
        self._backwards += 1
        optimizers = self._optimizers()
        if self._backwards == BACKWARDS and not optimizers:
            self._worker.take_no_snapshots(BY_HAND.format(BACKWARDS))
        if self._backwards > 1 and optimizers and not self._updating:
            self._look(optimizers)

    def _look(self, optimizers: Sequence[Any]) -> None:
        self._changes += self._elements.changes(optimizers)
        if self._changes >= max(CHANGES, MORE * self._most):
            self._worker.take_no_snapshots(ITSELF.format(self._changes))
            self._changes = 0

    def update_begins(self) -> None:
        """An optimizer is about to write: backwards within, as of a closure, follow its changes."""
        self._updating = True

    def updated(self) -> None:
        """An optimizer has made an update."""
        self._most = max(self._most, self._changes)
        self._steps.updated, self._updating, self._backwards, self._changes = True, False, 0, 0
        self._elements.forget()
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
